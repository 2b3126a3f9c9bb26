/*
 * One task, NP processes (incarnations) and their leader: which of them may process a record?
 * README.md in this folder maps every action, invariant and rule (R_...) to docs/protocol.md.
 * tests/model/lease.py is the same transition relation in Python; a test compares their numbers of states.
 *
 * Time is in steps. All times are ages, capped where they stop mattering, so the search covers unbounded time. Processes' clocks tick alike;
 * the clock of the broker jumps ahead JUMPS times, and goes back at any time. A message takes any time, or never arrives; doing nothing is being
 * paused.
 * tests/model/spin.py gives the configuration: NP, and of each process its member, session, margin, whether it goes step by step (SUSPECT), and
 * whether it claims a proof of death (PROOF). A process that is no suspect is as dangerous as it can be: it reads at once, its lease never ends.
 */
#define NONE NP
#define FORALL(v) for (v : 0 .. NP - 1)

/* an unread decision: */
#define REVOKED 1 /* MemberAssigned, the task in `revoke` */
#define OUT 2     /* MemberExpired, or a rejection of the incarnation */
#define TASK 3    /* TASK + h: MemberAssigned, the task in `active`, with h steps of hold */

/* what the leader knows of an incarnation: */
#define UNKNOWN 0
#define LIVE 1
#define FENCED 2
#define GONE 3

/* the leader */
byte since;          /* the broker's clock less the last append, as far as it matters */
byte most = STEP;    /* max_step_ms */
byte owner;          /* process; NONE: none */
bit revoking;        /* the owner was asked to give the task up */
bit late;            /* what it decides now is published later */
byte hold;           /* the hold of the next grant; 0: none */
byte jumps = JUMPS;  /* that may still happen */
byte known[NP];      /* UNKNOWN, LIVE, FENCED, GONE */
byte quiet[NP];      /* group time since it was heard */
#if RESTS
/* the worker, of a group at rest: L11 */
byte apart;          /* the broker's clock less the last append in the partition, of whichever group */
byte silent[NP];     /* the partition's time since it was heard */
#if !R_AFTER
byte measured[NP];   /* 1 + what the worker has measured and not appended yet; 0: nothing */
#endif
#endif

/* the processes */
byte runs[NP];       /* 0: not started; 1: runs; 2: over */
byte beat[NP];       /* age of the last acknowledged fact, from its sending */
byte seen[NP];       /* age of the last fetch that reached the end, from its sending */
byte grant[NP];      /* 0: none; 1: may run; 1 + h: waits for its hold, h steps more */
bit told[NP];        /* it has applied the last revocation that was sent to it */
byte batch[NP];      /* its fact on the way: 0: none; 1: sent; 2: appended */
byte sent[NP];       /* age of the batch */
bit free[NP];        /* the fact says: revocation applied, task not held */
bit held[NP];        /* the fact says: task held, under the last grant */
bit left[NP];        /* the fact is MemberLeft */
bit joins[NP];       /* the fact is MemberJoined */
bit proof[NP];       /* ... with ended_incarnation */
byte fetch[NP];      /* 0: none; 1: sent; 2: served */
byte asked[NP];      /* age of the fetch */
byte brings[NP];     /* how many of the unread decisions it brings */
bit whole[NP];       /* it reached the end */
byte unread[NP];     /* number of unread decisions */
byte pending[NP];     /* the last so many of them are not published yet; of a process that is no suspect: what it reads then */
byte q0[NP]; byte q1[NP]; byte q2[NP]; byte q3[NP]; byte q4[NP]; /* at most five: the leader changes its mind only while fewer than three are unread */

/* within one step; `holds` sets them back, so that they are no part of a state */
byte a; byte b; byte c; byte d; byte n; byte item; byte found;

#if R_CLAMP
#define LEAD (RAISED > STEP -> RAISED : STEP) /* beyond this lead of the clock nothing changes */
#define MOVED ((since < most) -> since : most)
#else
#define LEAD LONGEST + 1
#define MOVED since
#endif
#if R_MARGIN
#define LASTS(i) (SESSION(i) - MARGIN(i))
#else
#define LASTS(i) SESSION(i)
#endif
#if R_FETCH
#define FRESH(i) (beat[i] < LASTS(i) && seen[i] < LASTS(i))
#else
#define FRESH(i) (beat[i] < LASTS(i))
#endif
#define MAY_RUN(i) (runs[i] == 1 && grant[i] == 1 && (!SUSPECT(i) || FRESH(i)))
#if R_OWN_SESSION
#define WAITS(i) SESSION(i)
#else
#define WAITS(i) SHORTEST
#endif

#if R_EPOCH
#define FREE(i) told[i]
#else
#define FREE(i) (grant[i] != 1)
#endif
#define NEWS(i) (FREE(i) || grant[i] == 1)

#if RESTS
#define HEARD(i) quiet[i] = 0; silent[i] = 0
#define BEHIND (since > 0 || apart > 0)
#if R_SMALLEST
#define PARTITION_MOVED ((apart < STEP) -> apart : STEP)
#else
#define PARTITION_MOVED apart
#endif
/* A record is appended in the partition: its clock moves. */
inline elapse() {
  b = PARTITION_MOVED; apart = 0;
  FORALL(a) { if :: known[a] == LIVE && SUSPECT(a) -> silent[a] = (silent[a] + b < WAITS(a) -> silent[a] + b : WAITS(a)) :: else -> silent[a] = 0 fi }
  b = 0
}
#else
#define HEARD(i) quiet[i] = 0
#define BEHIND since > 0
#endif

/* The process ends. What it sent may still be appended. */
inline over(i) {
  runs[i] = 2; beat[i] = 0; seen[i] = 0; grant[i] = 0; told[i] = 0; sent[i] = 0;
  fetch[i] = 0; asked[i] = 0; brings[i] = 0; whole[i] = 0; unread[i] = 0; pending[i] = 0; q0[i] = 0; q1[i] = 0; q2[i] = 0; q3[i] = 0; q4[i] = 0;
  if :: batch[i] == 2 -> batch[i] = 0 :: else fi
}

inline clear_hold() {
  hold = 0;
  for (d : 0 .. NP - 1) { if :: known[d] == FENCED -> known[d] = GONE; quiet[d] = 0 :: else fi }
}

/* A process that is no suspect reads a decision. */
inline reads(i, what) {
  if
  :: what == OUT -> over(i)
  :: what >= TASK ->
     if :: grant[i] == 0 -> grant[i] = what - TASK + 1 :: what == TASK -> grant[i] = 1 :: else fi;
     if :: grant[i] == 1 -> clear_hold() :: else fi
  :: else
  fi
}

/* A decision for the incarnation. */
inline tell(i, what) {
  if
  :: runs[i] == 1 && SUSPECT(i) ->
     if :: unread[i] == 0 -> q0[i] = what :: unread[i] == 1 -> q1[i] = what :: unread[i] == 2 -> q2[i] = what
     :: unread[i] == 3 -> q3[i] = what :: unread[i] == 4 -> q4[i] = what :: else -> assert(false) fi;
     unread[i]++;
     if :: late -> pending[i]++ :: else fi
  :: runs[i] == 1 && !SUSPECT(i) && late -> pending[i] = what
  :: runs[i] == 1 && !SUSPECT(i) && !late -> reads(i, what)
  :: else
  fi
}

/* The incarnation is replaced while it may run: M5. */
inline force(i) {
  if
  :: owner == i ->
     known[i] = FENCED; owner = NONE; revoking = 0;
#if R_LONGEST
     if :: WAITS(i) > hold -> hold = WAITS(i) :: else fi
#else
     hold = WAITS(i)
#endif
  :: else -> known[i] = GONE; quiet[i] = 0
  fi;
  tell(i, OUT)
}

/* The incarnation is removed: nothing of it runs. */
inline remove(i) {
  known[i] = GONE; quiet[i] = 0;
  if :: owner == i -> owner = NONE; revoking = 0 :: else fi
}

/* An incarnation is waited for no longer. When it was the last one the hold is over, and the owner is told so. */
inline unfenced() {
  found = 1;
  FORALL(a) { if :: known[a] == FENCED -> found = 0 :: else fi }
  if :: found && hold -> hold = 0; if :: owner < NP && !revoking -> b = owner; tell(b, TASK) :: else fi :: else fi
}

/* A fact is appended and folded: group time moves (L2), then deadlines are handled (L3). What was `expelled` before is not unfenced at once. */
inline fold(expelled) {
#if RESTS
  elapse();
#endif
  n = MOVED; since = 0;
  FORALL(a) {
    if
    :: (known[a] == LIVE && SUSPECT(a)) || known[a] == FENCED -> quiet[a] = (quiet[a] + n < WAITS(a) -> quiet[a] + n : WAITS(a))
    :: else
    fi
  }
  FORALL(a) { if :: known[a] == LIVE && quiet[a] >= WAITS(a) -> remove(a); tell(a, OUT) :: else fi }
  found = 0;
  FORALL(a) {
    if :: known[a] == FENCED && quiet[a] >= WAITS(a) && a != expelled -> known[a] = GONE; quiet[a] = 0; found = 1 :: else fi
  }
  if :: found -> unfenced() :: else fi
}

inline join(i) {
  found = 0;
  for (c : i + 1 .. NP) {
    if :: c < NP && MEMBER(c) == MEMBER(i) && (known[c] == LIVE || known[c] == FENCED) -> found = 1 :: else fi
  }
  if
  :: found || (R_JOIN_MARGIN && MARGIN(i) < most) -> known[i] = GONE; tell(i, OUT)
  :: else ->
     known[i] = LIVE; HEARD(i);
     for (c : 0 .. i) {
       if
       :: c < i && MEMBER(c) == MEMBER(i) && known[c] == LIVE ->
          if :: proof[i] -> remove(c); tell(c, OUT) :: else -> force(c) fi
       :: else
       fi
     }
  fi
}

/* Actions. Each is one step. */

inline time() {
  d_step {
    printf("> time\n");
    since = (since + 1 < LEAD -> since + 1 : LEAD);
#if RESTS
    apart = (apart + 1 < LEAD -> apart + 1 : LEAD);
#endif
    FORALL(a) {
      if
      :: runs[a] == 1 && SUSPECT(a) ->
         beat[a] = (beat[a] + 1 < SESSION(a) -> beat[a] + 1 : SESSION(a)); seen[a] = (seen[a] + 1 < SESSION(a) -> seen[a] + 1 : SESSION(a));
         if :: batch[a] -> sent[a] = (sent[a] + 1 < SESSION(a) -> sent[a] + 1 : SESSION(a)) :: else fi;
         if :: fetch[a] -> asked[a] = (asked[a] + 1 < SESSION(a) -> asked[a] + 1 : SESSION(a)) :: else fi;
         if :: grant[a] > 1 -> grant[a]-- :: else fi;
#if R_NO_REVIVAL
         if :: !FRESH(a) -> over(a) :: else fi
#endif
      :: runs[a] == 1 && !SUSPECT(a) && grant[a] > 1 -> grant[a]--; if :: grant[a] == 1 -> clear_hold() :: else fi
      :: else
      fi
    }
    holds()
  }
}

inline jump() {
  d_step {
    jumps > 0 -> printf("> the broker's clock jumps\n"); jumps--; since = LEAD;
#if RESTS
    apart = LEAD;
#endif
    holds()
  }
}

inline back() {
  d_step {
    BEHIND -> printf("> the broker's clock goes back\n"); since = 0;
#if RESTS
    apart = 0;
#endif
    holds()
  }
}

#if RESTS
/* A record of another group of the partition. */
inline others() { d_step { apart > 0 -> printf("> another group of the partition appends\n"); elapse(); holds() } }

/* The worker says how long members were silent. It measures and appends in one step, because a fact in between makes it void. */
#if R_AFTER
inline observe() {
  d_step {
    printf("> the silence of members is appended\n"); fold(NONE);
    FORALL(a) { if :: known[a] == LIVE && silent[a] > quiet[a] -> quiet[a] = silent[a] :: else fi }
    holds()
  }
}
inline measure() { d_step { false -> skip } }
#else
inline measure() { d_step { printf("> the silence of members is measured\n"); FORALL(a) { measured[a] = 1 + silent[a] } holds() } }
inline observe() {
  d_step {
    measured[0] -> printf("> the silence of members is appended\n"); fold(NONE);
    FORALL(a) { if :: known[a] == LIVE && SUSPECT(a) && measured[a] > 1 + quiet[a] -> quiet[a] = measured[a] - 1 :: else fi; measured[a] = 0 }
    holds()
  }
}
#endif
#endif

inline tick() { d_step { since > 0 -> printf("> tick\n"); fold(NONE); holds() } }

inline move() {
  d_step {
    MOVES && since == 0 && owner < NP && revoking == 0 && unread[owner] < 3 && (SUSPECT(owner) || !late) -> printf("> the leader revokes the task of %d\n", owner);
    b = owner;
#if R_EPOCH
    told[b] = 0; free[b] = 0;
#endif
    if :: SUSPECT(b) -> revoking = 1; tell(b, REVOKED) :: else -> grant[b] = 0; owner = NONE fi;
    holds()
  }
}

/* To a member, once the task has no owner; or back to an owner that was asked to give it up (D9: its reason is gone). */
inline give(i) {
  d_step {
    since == 0 && known[i] == LIVE && (owner == NONE || (owner == i && revoking && unread[i] < 3)) -> printf("> the leader grants the task to %d\n", i);
    owner = i; revoking = 0;
#if R_EPOCH
    told[i] = 0; free[i] = 0;
#endif
    held[i] = 0;
#if R_HOLD
    n = hold; tell(i, TASK + n);
#else
    tell(i, TASK);
#endif
#if !R_HOLD_PASSES
    clear_hold();
#endif
    holds()
  }
}

/* Expelled (M7), before the deadlines of the same fact. The leader may do that at any moment, whatever its timeouts. */
inline expel(i) {
  d_step { MOVES && known[i] == LIVE && SUSPECT(i) -> printf("> the leader expels %d\n", i); force(i); fold(i); holds() }
}

/* The leader falls behind: it has read the facts, and its decisions are published later, all at once. */
inline fall_behind() { d_step { LATE && !late -> printf("> the leader falls behind\n"); late = 1; holds() } }

inline publish() {
  d_step {
    late -> printf("> the leader publishes what it has decided\n");
    late = 0;
    FORALL(a) {
      if
      :: !SUSPECT(a) && pending[a] -> item = pending[a]; pending[a] = 0; reads(a, item)
      :: else -> pending[a] = 0
      fi
    }
    holds()
  }
}

inline configure() {
  d_step {
    CONFIGURES && since == 0 -> 
    n = (most == STEP -> RAISED : STEP); found = 0;
    FORALL(a) {
      if
      :: MARGIN(a) < n && ((R_FITS_LIVE && known[a] == LIVE) || (R_FITS_FENCED && known[a] == FENCED)) -> found = 1
      :: else
      fi
    }
    if :: found -> printf("> max_step_ms is not changed\n") :: else -> printf("> max_step_ms is set to %d\n", n); most = n fi;
    holds()
  }
}

inline start(i) {
  d_step {
    runs[i] == 0 && STARTS(i) -> printf("> %d starts\n", i);
    proof[i] = 0;
    if
    :: PROOF(i) ->
       found = 1;
       for (c : 0 .. i) { if :: c < i && MEMBER(c) == MEMBER(i) -> found = !(R_PROOF && runs[c] == 1) :: else fi }
       proof[i] = found
    :: else
    fi;
    runs[i] = 1;
    if :: SUSPECT(i) -> batch[i] = 1; joins[i] = 1 :: else -> fold(NONE); join(i); proof[i] = 0 fi;
    holds()
  }
}

inline crash(i) { d_step { CRASHES && runs[i] == 1 && SUSPECT(i) -> printf("> %d crashes\n", i); over(i); holds() } }

inline close(i) {
  d_step {
    CLOSES && runs[i] == 1 && SUSPECT(i) && batch[i] == 0 -> printf("> %d stops everything and sends MemberLeft\n", i);
    over(i); batch[i] = 1; left[i] = 1; free[i] = 0; held[i] = 0; holds()
  }
}

/* Whoever has seen the process end says so, at any later moment: M11. */
inline prove(i) {
  d_step {
    WITNESS && SUSPECT(i) && (known[i] == LIVE || known[i] == FENCED) && (runs[i] == 2 || !R_WITNESS) -> printf("> %d is proven dead\n", i);
    fold(NONE);
    if
    :: known[i] == LIVE -> remove(i); tell(i, OUT)
    :: known[i] == FENCED -> known[i] = GONE; quiet[i] = 0; unfenced()
    :: else
    fi;
    holds()
  }
}

/* A report says what is so now, or nothing: it was made earlier. */
inline send(i, says) {
  d_step {
    runs[i] == 1 && SUSPECT(i) && batch[i] == 0 && (!says || NEWS(i)) -> printf("> %d sends a report\n", i);
    batch[i] = 1; sent[i] = 0; held[i] = (says && grant[i] == 1); free[i] = (says && FREE(i)); holds()
  }
}

inline append(i) {
  d_step {
    batch[i] == 1 -> printf("> what %d sent is appended\n", i);
    fold(NONE);
    if
    :: joins[i] -> join(i)
    :: !joins[i] && known[i] == LIVE ->
       HEARD(i);
       if
       :: left[i] -> remove(i)
       :: !left[i] && owner == i && revoking && free[i] -> owner = NONE; revoking = 0
       :: !left[i] && owner == i && !revoking && held[i] && hold -> clear_hold()
       :: else
       fi
    :: !joins[i] && known[i] == FENCED && R_HEARD -> quiet[i] = 0
    :: else
    fi;
    joins[i] = 0; proof[i] = 0; left[i] = 0; free[i] = 0; held[i] = 0;
    batch[i] = (runs[i] == 1 -> 2 : 0);
    holds()
  }
}

inline acknowledge(i) {
  d_step {
    batch[i] == 2 -> printf("> %d gets the acknowledgement\n", i);
#if R_DATED
    if :: sent[i] < beat[i] -> beat[i] = sent[i] :: else fi;
#else
    beat[i] = 0;
#endif
    batch[i] = 0; sent[i] = 0; holds()
  }
}

inline ask(i) {
  d_step { runs[i] == 1 && SUSPECT(i) && fetch[i] == 0 -> printf("> %d sends a fetch\n", i); fetch[i] = 1; asked[i] = 0; holds() }
}

inline serve(i, k) {
  d_step {
    fetch[i] == 1 && unread[i] - pending[i] >= k -> printf("> the fetch of %d is served, %d decisions\n", i, k);
    fetch[i] = 2; brings[i] = k; whole[i] = (k == unread[i] - pending[i]); holds()
  }
}

inline take(i) {
  item = q0[i]; q0[i] = q1[i]; q1[i] = q2[i]; q2[i] = q3[i]; q3[i] = q4[i]; q4[i] = 0; unread[i]--
}

/* A decision is lost on the way, and the reader does not notice (L4). */
inline lose(i) { d_step { !R_NUMBERS && unread[i] > pending[i] && fetch[i] == 0 -> printf("> %d misses a decision\n", i); take(i); holds() } }

inline arrive(i) {
  d_step {
    fetch[i] == 2 -> printf("> the fetch of %d arrives\n", i);
    n = brings[i]; brings[i] = 0; fetch[i] = 0;
    do
    :: n > 0 ->
       take(i); n--;
       if
       :: item == OUT -> 
#if R_HEEDS
          over(i); n = 0
#else
          skip
#endif
       :: item == REVOKED -> grant[i] = 0; told[i] = !(q0[i] >= TASK || q1[i] >= TASK || q2[i] >= TASK || q3[i] >= TASK) /* else it was granted again since */
       :: item >= TASK ->
          if :: grant[i] == 0 -> grant[i] = item - TASK + 1; told[i] = 0 :: item == TASK -> grant[i] = 1 :: else fi
       fi
    :: else -> break
    od;
    if
    :: runs[i] == 1 && (whole[i] || !R_END) ->
#if R_DATED
       if :: asked[i] < seen[i] -> seen[i] = asked[i] :: else fi
#else
       seen[i] = 0
#endif
    :: else
    fi;
    asked[i] = 0; whole[i] = 0; holds()
  }
}

#if NP > 2
#define MAY_RUN_2 MAY_RUN(2)
#else
#define MAY_RUN_2 0
#endif
#if NP > 3
#define MAY_RUN_3 MAY_RUN(3)
#else
#define MAY_RUN_3 0
#endif

/* The invariants. After every action. */
inline holds() {
  assert(MAY_RUN(0) + MAY_RUN(1) + MAY_RUN_2 + MAY_RUN_3 <= 1); /* one task, one owner */
#if WAITED_FOR
  FORALL(a) { assert(!MAY_RUN(a) || owner == a || known[a] == FENCED) } /* the leader waits for whoever may run */
#endif
  a = 0; b = 0; c = 0; d = 0; n = 0; item = 0; found = 0
}

#define OF(i) \
  :: give(i) :: expel(i) :: start(i) :: crash(i) :: close(i) :: send(i, 0) :: send(i, 1) :: append(i) :: acknowledge(i) :: ask(i) \
  :: serve(i, 0) :: serve(i, 1) :: serve(i, 2) :: serve(i, 3) :: serve(i, 4) :: serve(i, 5) :: arrive(i) :: lose(i) :: prove(i)

init {
  d_step {
    known[0] = LIVE; runs[0] = 1; grant[0] = 1; owner = 0;
    FORALL(a) { if :: a > 0 && !STARTS(a) -> known[a] = LIVE; runs[a] = 1 :: else fi }
    holds()
  }
  do
  :: time() :: jump() :: back() :: tick() :: move() :: fall_behind() :: publish() :: configure()
#if RESTS
  :: others() :: measure() :: observe()
#endif
  OF(0)
  OF(1)
#if NP > 2
  OF(2)
#endif
#if NP > 3
  OF(3)
#endif
  od
}
