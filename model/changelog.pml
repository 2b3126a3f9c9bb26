/*
 * One changelog, which OWNERS owners write one after the other, with at least once: docs/protocol.md#m6.
 * README.md in this folder maps every action, invariant and rule (C_...) to the protocol.
 *
 * Owner w is the grant with the token TOKEN(w) in the log LOG(w). lease.pml says that an owner no longer runs when the next one starts; what it had
 * sent before may still arrive, at any time. A commit processes one record of the source and counts it. Compaction, several changelogs of one task
 * and exactly once are not modelled.
 */
#define FENCE 1
#define COMMIT 2
#define BEGINS 0   /* it is granted the task */
#define RESTORED 1 /* it has read the changelog to its end, and knows its epoch */
#define FENCED 2   /* its fence is in the changelog */
#define RUNS 3

byte length;
byte kind[MOST]; byte epoch[MOST]; byte from[MOST]; byte by[MOST]; /* the records */
byte now;                                                           /* the owner */
byte phase; byte mine; byte position; byte last; byte sending;      /* its phase, epoch, count, length when it last read or wrote; its record on the way */
byte late[OWNERS]; byte late_epoch[OWNERS]; byte late_from[OWNERS]; /* what former owners have on the way */

/* within one step */
byte a; byte b; byte counted; byte top; byte top_epoch; byte fence_counts;

#if C_EPOCH
#define ORIGIN(e, w) (e * 64 + LOG(w) * 8 + TOKEN(w))
#else
#define ORIGIN(e, w) TOKEN(w)
#endif

/* What a member that restores now finds: how many records of the source count, the highest origin and its epoch. */
inline restore() {
  counted = 0; top = 0; b = OWNERS; top_epoch = 0; fence_counts = 0;
  for (a : 0 .. MOST - 1) {
    if
    :: a < length ->
       if
       :: !C_ORIGINS || ORIGIN(epoch[a], by[a]) >= top ->
          if :: kind[a] == COMMIT -> assert(from[a] == counted); counted++ :: else fi; /* each record of the source counts once */
          if :: ORIGIN(epoch[a], by[a]) >= top -> top = ORIGIN(epoch[a], by[a]); b = by[a]; top_epoch = epoch[a] :: else fi;
          if :: kind[a] == FENCE && by[a] == now && a + 1 == last -> fence_counts = 1 :: else fi
       :: else
       fi
    :: else
    fi
  }
}

inline put(w, what, e, f) {
  kind[length] = what; epoch[length] = e; from[length] = f; by[length] = w; length++
}

inline holds() {
  restore();
  assert(phase != RUNS || sending || counted == position); /* what the owner has counted is what the next one would restore */
  a = 0; b = 0; counted = 0; top = 0; top_epoch = 0; fence_counts = 0
}

inline next() {
  d_step {
    now + 1 < OWNERS -> printf("> the task is granted to owner %d\n", now + 1);
    late[now] = sending; late_epoch[now] = (sending -> mine : 0); late_from[now] = (sending == COMMIT -> position : 0);
    now++; phase = BEGINS; mine = 0; position = 0; last = 0; sending = 0;
    holds()
  }
}

/* Steps 2 and 4: it restores to the end, and takes its epoch from the highest origin. */
inline read() {
  d_step {
    phase == BEGINS -> printf("> owner %d restores to the end\n", now);
    restore();
    position = counted; last = length; mine = (b == OWNERS -> 1 : (LOG(b) == LOG(now) -> top_epoch : top_epoch + 1));
    phase = RESTORED;
    if :: !C_FENCE -> phase = RUNS :: else fi;
    holds()
  }
}

inline fence() {
  d_step { phase == RESTORED && !sending -> printf("> owner %d sends its fence\n", now); sending = FENCE; holds() }
}

inline arrives() {
  d_step {
    sending && length < MOST ->
    if
    :: sending == FENCE ->
       printf("> the fence of owner %d arrives\n", now);
       put(now, FENCE, mine, 0); phase = FENCED;
       restore();
       assert(last + 1 != length || b == now); /* it has to start again only if another process has written */
       if :: !C_TO_FENCE -> phase = RUNS :: else fi;
       last = length
    :: else ->
       printf("> the commit of owner %d arrives\n", now);
       put(now, COMMIT, mine, position);
       if
       :: C_FOLLOWS && last + 1 != length -> phase = BEGINS; mine = 0; position = 0; last = 0 /* another process has written in between */
       :: else -> position++; last = length
       fi
    fi;
    sending = 0; holds()
  }
}

/* Step 5: it restores at least up to its fence, and starts again unless its origin is then the highest. */
inline look() {
  d_step {
    phase == FENCED -> printf("> owner %d restores up to its fence\n", now);
    restore();
    if
    :: fence_counts && (b == now || !C_OWNER_LAST) -> phase = RUNS; position = counted; last = length
    :: else -> phase = BEGINS; mine = 0; position = 0; last = 0
    fi;
    holds()
  }
}

inline commit() {
  d_step { phase == RUNS && !sending -> printf("> owner %d sends a commit\n", now); sending = COMMIT; holds() }
}

inline arrives_late(w) {
  d_step {
    late[w] && length < MOST -> printf("> the late %d of owner %d arrives (1: fence, 2: commit)\n", late[w], w);
    put(w, late[w], late_epoch[w], late_from[w]);
    late[w] = 0; late_epoch[w] = 0; late_from[w] = 0; holds()
  }
}

init {
end: do
     :: next() :: read() :: fence() :: arrives() :: look() :: commit()
     :: arrives_late(0) :: arrives_late(1)
#if OWNERS > 3
     :: arrives_late(2)
#endif
     od
}
