/* Unreft's C ABI: what a trainer links (libunreft.so). The C++ API (unreft.h) is a thin layer over
 * it.
 *
 * Conventions:
 *  1. Functions return UNREFT_OK or an error code; unreft_error() then gives the calling thread's
 *     message for it, which names the subject, the number needed and the number found.
 *  2. Nothing here aborts, exits, prints to the standard streams, or throws.
 *  3. Structs begin with `struct_bytes`, set by the caller to sizeof: older callers go on working.
 *     unreft_*_init() sets it and the defaults.
 *  4. Strings and arrays passed in are copied before the call returns. Memory behind tensors'
 * `data` is the caller's: it stays in place from unreft_register to the end of the last fence, or
 * of the first fence after unreft_rebind gave the tensor another place.
 *  5. Pointers handed out belong to the client and live until the next call of the same kind.
 *  6. A client is used by one training thread at a time; unreft_error is per thread.
 *  7. In a forked child every call returns UNREFT_FORKED and touches nothing.
 *
 * The order of calls in a training process:
 *
 *   unreft_open -> unreft_restore_begin -> unreft_restore_read -> unreft_register
 *   each step:  forward, backward, unreft_fence, optimizer step, unreft_snapshot
 *   unreft_close
 *
 * State that is a function of other state, such as bf16 weights of fp32 masters, need not be
 * registered: docs/derived_state.md says how it is verified at a restore all the same.
 */
#ifndef UNREFT_C_H_
#define UNREFT_C_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define UNREFT_API __attribute__((visibility("default")))

/* Codes are persistent. 0..16 are those of absl::StatusCode. */
typedef enum unreft_code {
  UNREFT_OK = 0,
  UNREFT_CANCELLED = 1, /* keep_waiting ended the call */
  UNREFT_INVALID_ARGUMENT = 3,
  UNREFT_DEADLINE_EXCEEDED = 4,
  UNREFT_NOT_FOUND = 5,
  UNREFT_ALREADY_EXISTS = 6,
  UNREFT_PERMISSION_DENIED = 7,
  UNREFT_RESOURCE_EXHAUSTED = 8,
  UNREFT_FAILED_PRECONDITION = 9,
  UNREFT_ABORTED = 10,
  UNREFT_OUT_OF_RANGE = 11,
  UNREFT_INTERNAL = 13,
  UNREFT_UNAVAILABLE = 14,
  UNREFT_DATA_LOSS = 15,
  UNREFT_FORKED = 100,
  UNREFT_DRY_RUN = 101 /* of a dry run, see unreft_open: the layout is written, end the process */
} unreft_code;

/* Numbers of unreft::Dtype. */
typedef enum unreft_dtype {
  UNREFT_BOOL = 1,
  UNREFT_UINT8 = 2,
  UNREFT_INT8 = 3,
  UNREFT_INT16 = 4,
  UNREFT_INT32 = 5,
  UNREFT_INT64 = 6,
  UNREFT_FLOAT16 = 7,
  UNREFT_BFLOAT16 = 8,
  UNREFT_FLOAT32 = 9,
  UNREFT_FLOAT64 = 10,
  UNREFT_FLOAT8_E4M3 = 11,
  UNREFT_FLOAT8_E5M2 = 12,
  UNREFT_COMPLEX64 = 13,
  UNREFT_COMPLEX128 = 14,
  UNREFT_UINT16 = 15,
  UNREFT_UINT32 = 16,
  UNREFT_UINT64 = 17
} unreft_dtype;

/* Where a tensor's bytes are. */
typedef enum unreft_device_kind { UNREFT_CPU = 1, UNREFT_CUDA = 2 } unreft_device_kind;

typedef struct unreft_client unreft_client;

typedef struct unreft_open_options {
  size_t struct_bytes;
  const char* socket;         /* NULL: $UNREFT_SOCKET */
  const char* job;            /* NULL: $UNREFT_JOB, else "default" */
  int64_t rank;               /* -1: $RANK, else 0 */
  int64_t world;              /* -1: $WORLD_SIZE, else 1 */
  int64_t attempt;            /* -1: $UNREFT_ATTEMPT, else $TORCHELASTIC_RESTART_COUNT, else by
                                 $SLURM_JOB_ID, _STEP_ID and _RESTART_COUNT, else 0. The same on all
                                 ranks, and another one for each start of the job */
  int64_t connect_timeout_ms; /* for unreft_open; default 10000 */
  int64_t restore_timeout_ms; /* for each of the restore calls; default 300000 */
  int64_t fence_timeout_ms;   /* a fence that waits longer gives the version up; default 60000 */
  /* Appended; callers compiled before it go without. */
  int32_t device_checksum; /* 1: what is on a CUDA device is checksummed there before it is copied,
                              and after a restore; 0: not. -1: $UNREFT_DEVICE_CHECKSUM, else 0.
                              FAILED_PRECONDITION of unreft_open where the library was built without
                              the kernel for it. */
  /* Asked about every 100 ms, on the thread that waits, by a call that waits for something outside
   * of this process: unreft_open, _restore_begin, _restore_read, _register, _register_within,
   * _wait_ready, _wait_committed, _ever_committed; never by _fence or _snapshot. `waited_for` is
   * part of a sentence and lives until the answer. Not 0: the call ends with UNREFT_CANCELLED, and
   * touches none of its caller's memory any more. It may not call the client. NULL: nothing is
   * asked. */
  int32_t (*keep_waiting)(void* context, const char* waited_for, double seconds_so_far);
  void* keep_waiting_context;
  /* 1: a version is restored that another number of ranks has saved; then unreft_decision.extras is
   * NULL and unreft_restore_extras has theirs. 0: it is refused. */
  int32_t any_world;
} unreft_open_options;

/* The shard of one logical tensor: the box [offset, offset + extent) of `global_shape`, dense at
 * `data`, row-major unless `memory_order` says otherwise; or, if `range` is given, a run of the
 * elements of that box. Of `replica_count` ranks that hold the same elements with the same bytes,
 * this is the `replica_index`-th. A rank may have several shards of one tensor, none of which
 * overlap. */
typedef struct unreft_tensor {
  size_t struct_bytes;
  const char* name;
  int32_t dtype; /* unreft_dtype */
  int32_t dims;
  const uint64_t* global_shape; /* [dims], elements */
  const uint64_t* offset;       /* [dims], elements */
  const uint64_t* extent;       /* [dims], elements */
  void* data;                   /* NULL in what the store describes */
  int32_t device_kind;          /* unreft_device_kind */
  int32_t device_index;
  uint32_t replica_index;
  uint32_t replica_count;
  int32_t
      is_volatile; /* changes outside the optimizer step: copied before unreft_snapshot returns */
  /* Appended; callers compiled before it go without. */
  const uint32_t* memory_order; /* [dims]: the dimensions as they lie in memory, from the slowest to
                                   the fastest; {0, 2, 3, 1} is channels_last. NULL: row-major. The
                                   same on all ranks that hold the tensor. A restore into another
                                   order is refused. */
  /* [2]: begin and end of a range. Of the elements of the box, numbered in row-major order within
   * it, those from `begin` to `end` - 1 are this shard, one behind the other, the first at `data`:
   * what a rank has of a flat buffer that is cut without regard to rows. Begin equal to end: this
   * rank has nothing of the tensor, and `data` may be NULL. NULL: the whole box.
   *
   * The store knows boxes alone: a range is kept as boxes that are dense in its data, of which
   * there are 2 * dims - 1 at most. unreft_decision has those, each as a tensor of this name, and
   * messages name them. What was saved as ranges is restored into any boxes and ranges, and what
   * was saved as boxes into ranges.
   *
   * INVALID_ARGUMENT unless begin <= end <= the elements of the box, and for a range of a tensor
   * whose memory_order is not row-major. */
  const uint64_t* range;
  /* Of what is restored into, as for a vocabulary that is padded to a multiple of the ranks. 1:
   * what is stored may have another global shape, of as many dimensions. Elements that both have,
   * by their place in the tensor, are restored, and the others of this shard stay as they are. 0:
   * that is refused. */
  int32_t allow_shape_mismatch;
} unreft_tensor;

/* What people call a timeline, and what messages print: timeline 3. Compare timelines themselves:
 * after the loss of a meta store there may be two of one number, which are not the same. */
static inline uint64_t unreft_timeline_number(uint64_t timeline) {
  return timeline >> 32 != 0 ? timeline >> 32 : timeline;
}

/* What the store decided for this attempt. Tensors and extras are this rank's, the rest is the same
 * on every rank. */
typedef struct unreft_decision {
  size_t struct_bytes;
  int32_t restored;             /* 0: nothing was ever committed, start from scratch */
  uint64_t step;                /* of the version that every rank restores */
  uint64_t timeline;            /* of that version */
  uint64_t new_timeline;        /* opened by this decision */
  const unreft_tensor* tensors; /* every logical tensor stored, with this rank's earlier box, once
                                   for each if it had several, or whole if another number of ranks
                                   saved it */
  size_t tensor_count;
  const void* extras; /* this rank's earlier extras, verified; NULL when it had none, or if another
                         number of ranks saved the version */
  size_t extras_bytes;
  /* Appended; callers compiled before it go without. */
  size_t tensor_bytes; /* set by the caller, to sizeof(unreft_tensor): how far apart the elements of
                          `tensors` are to be; 0: as far as they were at first, without what was
                          appended to them */
  uint64_t source_world;    /* how many ranks saved the version; 0 when nothing is restored */
  const char* durable_copy; /* the directory of the durable copy that the version was loaded from,
                               since no memory had it or a newer one whole; NULL otherwise */
} unreft_decision;

typedef enum unreft_outcome {
  UNREFT_STARTED = 1, /* the copies run */
  UNREFT_SKIPPED = 2  /* no snapshot of this step; unreft_error() says why */
} unreft_outcome;

typedef struct unreft_status {
  size_t struct_bytes;
  int32_t connected;
  int32_t ready; /* a slot is granted: a snapshot starts, unless all ranks await a later step */
  uint64_t timeline;
  uint64_t last_captured_step; /* UINT64_MAX: none yet, here and below */
  uint64_t last_sealed_step;
  uint64_t last_committed_step; /* by every rank */
  uint64_t snapshots_started;
  uint64_t snapshots_skipped;
  uint64_t snapshots_given_up;
  uint64_t bytes_captured;
  double last_fence_wait_s;
  double total_fence_wait_s;
  const char* last_problem; /* "" when there was none */
  int32_t copying;          /* copies of a snapshot may read the tensors */
  const char* copier;       /* what copies, for people: "host memory", "CUDA device 0, ..." */
  /* Whether what was trained is safe: the newest step for which unreft_snapshot was called is
   * committed, or the oldest that is not is younger than 60 s, or than 5 times the usual distance
   * of two commits if that is longer. What was restored counts as committed; 0 before the first
   * commit of a fresh start. While no snapshot is called for, as in a long evaluation, it stays. */
  int32_t protecting;
  double seconds_since_commit; /* or since the restore, if nothing was committed after it; -1:
                                  nothing is committed yet */
  const char* why_unprotected; /* for people, whole sentences: since when, why, what to do; "" while
                                  it is protecting */
  /* Appended; callers compiled before it go without. */
  const char* unsampled; /* for people: why samples of tensors on a device are not compared, so that
                            nobody sees that one is written before its fence; "" where all are */
} unreft_status;

UNREFT_API const char* unreft_version(void);
UNREFT_API const char* unreft_error(void);

/* Sets the caller's struct and no byte beyond, whichever header the caller was compiled with. */
UNREFT_API void unreft_open_options_init_sized(unreft_open_options* options, size_t struct_bytes);
#define unreft_open_options_init(options) \
  unreft_open_options_init_sized((options), sizeof(*(options)))
UNREFT_API void unreft_tensor_init_sized(unreft_tensor* tensor, size_t struct_bytes);
#define unreft_tensor_init(tensor) unreft_tensor_init_sized((tensor), sizeof(*(tensor)))

/* Connects to the node's daemon. UNAVAILABLE when none answers within the deadline, ALREADY_EXISTS
 * when processes of another attempt, or another process of this rank, live on until then,
 * FAILED_PRECONDITION while this process has another client open for the same rank.
 *
 * In a dry run ($UNREFT_DRY_RUN names a directory, as `unreft run --dry-run` sets it) it connects
 * to nobody. Of such a client unreft_restore_begin decides for a fresh start, and the first of
 * unreft_restore_read, unreft_register and unreft_register_within writes which tensors the rank
 * has to a file in that directory, reads and writes none of their memory, and returns
 * UNREFT_DRY_RUN, as does whatever needs a daemon. The program then ends. */
UNREFT_API int unreft_open(const unreft_open_options* options, unreft_client** client);
/* Waits for the copies that are under way, then leaves. NULL is ignored. */
UNREFT_API void unreft_close(unreft_client* client);

/* Waits until the store has decided for all ranks of this attempt. May fail: DATA_LOSS when state
 * was committed and none of it is whole any more, DEADLINE_EXCEEDED naming the ranks that did not
 * ask, ABORTED when a decision that other processes asked for took the place of this one's. Never
 * says "nothing stored" in such a case. */
UNREFT_API int unreft_restore_begin(unreft_client* client, unreft_decision* decision);
/* The same, of the versions of `step` and earlier ones: the newest of these that is whole. All
 * ranks give the same step. What is newer is given up by the decision. FAILED_PRECONDITION, with
 * the versions that could be restored, when only newer ones are whole; INVALID_ARGUMENT when the
 * ranks give different steps. Memory keeps the last commit, and of older versions those that are
 * pinned (`unreft pin`). */
UNREFT_API int unreft_restore_begin_at_or_before(unreft_client* client, uint64_t step,
                                                 unreft_decision* decision);
/* Copies the decided version into `tensors`, every block verified. On an error the bytes of the
 * tensors are undefined. May be called more than once, with other tensors. */
UNREFT_API int unreft_restore_read(unreft_client* client, const unreft_tensor* tensors,
                                   size_t count);
/* The extras of one of the `source_world` ranks that saved the decided version, verified; NULL when
 * it had none. They live until the next call of this function, or of unreft_restore_begin. Between
 * unreft_restore_begin and unreft_restore_end. OUT_OF_RANGE for a rank that there was not,
 * DATA_LOSS when they do not verify. */
UNREFT_API int unreft_restore_extras(unreft_client* client, uint64_t rank, const void** extras,
                                     size_t* extras_bytes);
/* Lets the store reuse what was restored; implied by the first snapshot. */
UNREFT_API int unreft_restore_end(unreft_client* client);

/* Declares what is captured from now on. `extras_bytes` is the size expected of the extras. Waits
 * for the daemon's answer; the slots fill with memory in the background after it. */
UNREFT_API int unreft_register(unreft_client* client, const unreft_tensor* tensors, size_t count,
                               uint64_t extras_bytes);

/* Tells that tensors were replaced by others like them: from the next snapshot on the indices[i]-th
 * tensor given to the last unreft_register lies at data[i], with the same dtype, box, range,
 * replicas and device. Called after a fence, or while no copies run; quick, since nobody else is
 * told and nothing is granted anew. What lay at the old addresses may be freed after the fence. On
 * an error nothing is rebound: FAILED_PRECONDITION when nothing is registered, OUT_OF_RANGE for an
 * index, INVALID_ARGUMENT for data that is NULL, unless the range is empty. */
UNREFT_API int unreft_rebind(unreft_client* client, const uint64_t* indices, void* const* data,
                             size_t count);

/* As unreft_register, but waits for no longer than `timeout_ms` for the daemon's answer. What
 * depends on this process alone comes before and is not counted: copies that are under way end, or
 * are given up after fence_timeout_ms. DEADLINE_EXCEEDED: the registration goes on in the
 * background, and snapshots are skipped until the daemon has answered it; nothing of what was
 * registered before is read any more. For the calls of a training step. */
UNREFT_API int unreft_register_within(unreft_client* client, const unreft_tensor* tensors,
                                      size_t count, uint64_t extras_bytes, int64_t timeout_ms);

/* Waits until a snapshot would start: until the daemon has taken over what is registered and has
 * memory for it. DEADLINE_EXCEEDED says what is missing; FAILED_PRECONDITION when waiting does not
 * help, since nothing is registered or no restore is decided. For the first snapshot; one that
 * comes earlier is skipped. */
UNREFT_API int unreft_wait_ready(unreft_client* client, int64_t timeout_ms);

/* Starts the capture of all registered tensors after `step` optimizer steps, with `extras`. Never
 * waits for the daemon. `stream` is a cudaStream_t, NULL on CPU: the capture of tensors on a device
 * comes after what it was given before; volatile tensors may be changed by what it is given next.
 * Tensors in host memory are read from now on: copies to them must have ended. Skipped until a
 * fence is called if tensors in host memory have changed since the last snapshot of this
 * registration, and nothing called one; what is registered may be filled until the first. A tensor
 * that is written while it is copied gives the version up, as far as it is seen:
 * docs/second_net.md. FAILED_PRECONDITION while it captures a graph. */
UNREFT_API int unreft_snapshot(unreft_client* client, uint64_t step, const void* extras,
                               size_t extras_bytes, void* stream, int32_t* outcome);

/* Says that the program could not take a snapshot of `step`, and why: it counts as one that
 * unreft_snapshot has skipped, for unreft_get_status, the daemon and the other ranks, whose part of
 * that version is given up. Of a program that says nothing it is not known that it goes on without:
 * what it committed last counts as the newest. FAILED_PRECONDITION for a step that is not beyond
 * the last snapshot's. */
UNREFT_API int unreft_skip_snapshot(unreft_client* client, uint64_t step, const char* reason);

/* Tells that the registered tensors will change. Returns when those in host memory may: their
 * copies are done, or given up. Those on a device may be changed by what `stream` is given from
 * then on: it waits for the copies. The host waits until they are enqueued, which takes some ms, or
 * with more than 8 GiB on the device until that much is left; if that takes longer than
 * fence_timeout_ms, the snapshot is given up. An error says that the stream does not wait. Depends
 * on nothing but this process. */
UNREFT_API int unreft_fence(unreft_client* client, void* stream);

/* The streams besides that of unreft_snapshot which write registered tensors on a device. */
UNREFT_API int unreft_set_writer_streams(unreft_client* client, void* const* streams, size_t count);

UNREFT_API int unreft_get_status(unreft_client* client, unreft_status* status);

/* Waits until the snapshot of `step` is committed by all ranks, or was skipped or abandoned
 * (ABORTED). For tests and for the end of a run; training does not need it. */
UNREFT_API int unreft_wait_committed(unreft_client* client, uint64_t step, int64_t timeout_ms);

/* Whether anything was ever committed in this job, as this node's daemon knows it: 1 or 0 in
 * `answer`. 0 also after a fresh start was declared since. Decides nothing, opens no timeline and
 * waits for no other rank; may be called at any time after unreft_open. UNAVAILABLE when the daemon
 * cannot say within the connect timeout. */
UNREFT_API int unreft_ever_committed(unreft_client* client, int32_t* answer);

#ifdef __cplusplus
}
#endif

#endif /* UNREFT_C_H_ */
