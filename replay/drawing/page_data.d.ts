// What the pictures draw: `page_data` in timeline_page.py and in incident_page.py. Times are ms since `from`, which is ms since 1970;
// members and tasks are their indices, nobody is -1. tests/unit/test_script_types.py holds what Python makes against these types.

export type Interval = [
  task: number, member: number, condition: 0 | 1 | 2 | 3, from: number, to: number, offset: number | null, generation: number
];
export type Copy = [task: number, member: number, isWarmup: 0 | 1, from: number, to: number, ready: number | null];
export type Curve = [ms: number, level: number][];
export type Lags = [task: number, member: number, points: Curve];
export interface Life {
  member: number, incarnation: number, capacity: number, from: number, to: number | null, silent: number | null, how: string
}
export interface Move {
  task: number, source: number, destination: number, changes: boolean, outcome: string, offset?: number, number: number | null,
  steps: [ms: number, state: string, offset?: number][], began: number, ended: number | null, restored: number | null, why: string
}
export interface Round {
  ms: number, offset: number | null, generation: number, cause: string, text: string, moves: number, members: number
}
export interface Span { label: string, from: number, to: number }

export interface PictureData {
  from: number, to: number, windows: Span[], members: string[], colours: string[], cause_colours: Record<string, string>, tasks: string[],
  lives: Life[], intervals: Interval[], copies: Copy[], moves: Move[], rounds: Round[], lags: Lags[], imbalance: Curve
}
export interface PageData extends PictureData {
  title: string, subtitle: string, note: string, caption: string, cards: [value: string, label: string][],
  columns: string[], totals: (string | number)[][], stories?: [heading: string, lines: string[]][]
}
