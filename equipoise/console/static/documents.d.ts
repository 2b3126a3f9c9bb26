// What the worker answers the console: documents.py, progress.py, troubles.py, recent.py and answering.py make it.
// tests/unit/test_script_types.py holds what they make against these types.

export interface Trouble { level: number, text: string, task: string | null, member: string | null }
export interface Cost { name: string, expected: string, was: string, side: "" | "inside" | "above" | "below" }
export interface Change {
  group: string, offset: number, ms: number, judged_ms: number | null, change: string, what: string, why: string, or_undo: boolean,
  verdict: string, undone: boolean, level: number, costs: Cost[]
}
export type Phase = "halted" | "unconfigured" | "empty" | "gathering" | "leading" | "shadowing";
export interface Brief {
  group: string, partition: number, phase: Phase, led_by: string, members: number, tasks: number, moving: number, generation: number,
  lag: number | null, rate: number | null, offset: number, append_ms: number, level: number, troubles: Trouble[]
}
export interface Listed extends Brief { led_since_ms: number | null, lags: (number | null)[] }
export interface Groups { log_id: string, unready: string, groups: Listed[], changes: Change[] }

export interface Member {
  member: string, colour: string, incarnation: number, capacity: number, rack: string | null, tags: Record<string, string>, state: string,
  active: number, standby: number, warmup: number, revoking: number, silent_ms: number, session_timeout_ms: number,
  restore_records_per_s: number | null, acceptable_lag_records: number, assignment_epoch: number, applied_epoch: number,
  advertised: string | null, crashes: number, drain: string
}
export type Task = [task: string, owner: number, condition: string, destination: number, movement: string];
export type Lag = number | "active" | "unknown" | null;
export type Copy = [task: string, member: number, isWarmup: number, lag: Lag];
export interface Wait {
  kind: "starting" | "revoking" | "warming" | "waiting" | "standby", task: string, source: string | null, destination: string | null,
  lag_records: number | null, first_lag_records: number | null, expected_ms: number | null, since_ms: number | null, left_ms: number | null,
  why: string
}
export interface Group extends Brief {
  assignor: string, verdict: string | null, planned: number, imbalance: number, settings: Record<string, string>, member_rows: Member[],
  task_rows: Task[], copies: Copy[], tasks_left_out: number, changes: Change[], waits: Wait[],
  grounds: { [more: string]: unknown }, calm: string, still: string
}

export interface Sentence {
  id: number, group: string, ms: number, level: number, text: string, offset?: number, tasks?: string[], member?: string, source?: string,
  destination?: string, [more: string]: unknown
}
export interface Sentences { said: Sentence[], last: number, since_ms?: number }

export interface Candidate {
  member_id: string, lag: Lag, caught_up: boolean, active_tasks: number, obstacle: string | null, [more: string]: unknown
}
export interface Explanation {
  why_here: string[], what_next: string[], candidates_at_ms: number | null, candidates: Candidate[], [more: string]: unknown
}

export interface PlannedMove {
  task: string, source: string | null, destination: string, state: string, why: string, lag_records: number | null
}
interface Outcome {
  waited_ms: number, changes_of_owner: number, fewest: number, restore_records: number, restore_ms: number | null,
  imbalance_before: number, imbalance_after: number
}
export interface WhatIf extends Partial<Outcome> {
  remarks: string[], moves: PlannedMove[], members: { member: string, before: number, after: number }[], warmups: number
}

export interface Documents {
  "api/groups": Groups, "api/group": Group, "api/timeline": import("./page_data").PageData, "api/said": Sentences,
  "api/explain": Explanation, "api/what-if": WhatIf
}
