// RankGroup: the training processes of one attempt on this machine, from their start to their end.
//
// Each rank leads a process group of its own, so that its data loaders end with it, and dies with
// this process. Single-threaded; SIGINT, SIGTERM and SIGHUP must be blocked and come by a signalfd.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <poll.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tools/cli/line_prefixer.h"
#include "tools/cli/process_handle.h"
#include "tools/cli/spawn.h"

namespace unreft::cli {

struct RankGroupOptions {
  std::vector<std::string> command;
  uint32_t ranks = 1;
  // Of every rank; each adds its RANK and LOCAL_RANK.
  std::vector<std::pair<std::string, std::string>> environment;
  // Of each rank, over that; empty or one per rank.
  std::vector<std::vector<std::pair<std::string, std::string>>> rank_environment;
  Milliseconds grace{500};        // between SIGTERM and SIGKILL
  Milliseconds kill_wait{10000};  // for the end of a process after SIGKILL
  bool prefix_output = false;
  // If set: whether a rank has done what it was started for, whatever it exits with. Once all have,
  // those that still run after `done_wait` are stopped.
  std::function<bool(uint32_t rank)> has_done;
  Milliseconds done_wait{10000};
  // If set: looked at again and again while all ranks run: why they are to end, for another attempt
  // that is not a restart after a failure.
  std::function<std::optional<std::string>()> why_to_end;
};

struct RankEnd {
  uint32_t rank = 0;
  pid_t pid = 0;
  int wait_status = 0;
  bool failed() const { return wait_status != 0; }
};

// Why an attempt ended: all ranks exited with 0 unless one of these is set.
struct AttemptEnd {
  std::optional<RankEnd> failure;    // the rank that failed first
  std::optional<int> signal;         // which was sent to us
  std::optional<std::string> moved;  // as RankGroupOptions::why_to_end has said
};

class RankGroup {
 public:
  explicit RankGroup(const RankGroupOptions& options) : options_(options) {}
  // Ends what still runs, with SIGKILL.
  ~RankGroup();
  RankGroup(const RankGroup&) = delete;
  RankGroup& operator=(const RankGroup&) = delete;

  // Starts all ranks, or none and says why.
  absl::Status Start();

  std::vector<pid_t> pids() const;

  // Waits until every rank has ended. The first failure, or a signal from `signal_fd`, makes it
  // stop the others; a second signal does not wait for the grace time. DeadlineExceeded names a
  // rank that outlives SIGKILL.
  absl::StatusOr<AttemptEnd> Run(int signal_fd);

 private:
  // One stream of a rank's output on its way to ours.
  struct Output {
    OwnedFd source;
    int target;
    LinePrefixer lines;
  };
  struct Member {
    uint32_t rank;
    ProcessHandle process;
    bool running = true;
  };

  absl::Status StartRank(uint32_t rank, int nothing_fd);
  absl::StatusOr<OwnedFd> AddOutput(uint32_t rank, int target);
  bool AnyRunning() const;
  absl::Status PollOnce(int signal_fd);
  void CollectEnds();
  RankEnd Reap(Member& member);
  void OnSignal(int signal);
  void BeginStop();
  void StopIfDone();
  void StopIfMoved();
  absl::Status StopIfLate();
  void SignalAll(int signal);
  void PassOutputOn();
  void PassOn(const Output& output, std::string lines);
  absl::StatusOr<AttemptEnd> PassRestOn(int signal_fd);

  const RankGroupOptions& options_;
  std::vector<Member> members_;
  std::vector<Output> outputs_;
  // What was read, whole lines and where to; nothing more is read as long as there is some.
  std::deque<std::pair<int, std::string>> unwritten_;
  AttemptEnd end_;
  uint64_t signals_ = 0;                // that have come
  std::optional<Deadline> done_at_;     // set once all have done what they were started for
  std::optional<Deadline> kill_at_;     // set while stopping
  std::optional<Deadline> give_up_at_;  // set once SIGKILL was sent
};

}  // namespace unreft::cli
