#include "smp/node/drain_role.h"

#include <absl/strings/ascii.h>
#include <absl/strings/escaping.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <unreft/copy.pb.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/format.h"
#include "base/shm_segment_store.h"
#include "base/text.h"
#include "base/unique_fd.h"
#include "durable/cold_place.h"
#include "durable/copy_restore.h"
#include "durable/copy_run.h"
#include "durable/copy_shelf.h"
#include "durable/paced_cold_store.h"
#include "smp/node/cold_storage.h"

namespace unreft::smp {
namespace {

using durable::ColdStore;

constexpr char kProcessName[] = "unreft-drain";  // of 15 bytes at most
constexpr int kLowestPriority = 19;
constexpr int kFirstToGo = 1000;  // when memory is out
constexpr int kLeftOutMax = 100;
constexpr std::chrono::hours kLeftoverAfter(24);
constexpr std::chrono::milliseconds kTellEvery(500);
// For a node to begin that decodes first: who runs the copy ends it when nothing moves any more.
constexpr std::chrono::hours kDecodedWithin(24);
constexpr std::chrono::milliseconds kPauseAtMost(50);

std::atomic<bool> is_to_end = false;

void EndOnSignals() {
  struct sigaction action{};
  action.sa_handler = [](int) { is_to_end = true; };
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);
  signal(SIGPIPE, SIG_IGN);  // a write that fails says it
}

Time Now() { return std::chrono::time_point_cast<Duration>(std::chrono::steady_clock::now()); }

// False when the process is to end, which a signal says at once.
bool Pause(Duration duration) {
  const auto until = std::chrono::steady_clock::now() + duration;
  while (!is_to_end) {
    const auto left = until - std::chrono::steady_clock::now();
    if (left <= Duration(0)) break;
    const auto ms =
        std::chrono::ceil<std::chrono::milliseconds>(std::min<Duration>(left, kPauseAtMost));
    // The end of the pipe to the daemon: an error says that nobody reads any more.
    pollfd output{STDOUT_FILENO, 0, 0};
    if (poll(&output, 1, static_cast<int>(ms.count())) > 0 && (output.revents & POLLERR) != 0) {
      is_to_end = true;
    }
  }
  return !is_to_end;
}

// Of a file system, or s3://.
absl::StatusOr<std::unique_ptr<ColdStore>> OpenStorage(const std::string& directory,
                                                       bool writes = true) {
  return OpenColdStorage(
      directory, {.pause = Pause, .is_ending = [] { return is_to_end.load(); }, .writes = writes});
}

// Speaks to the daemon.
class Teller {
 public:
  void Tell(const CopyPartReply& reply) {
    const std::string line = absl::BytesToHexString(reply.SerializeAsString()) + "\n";
    for (size_t at = 0; at < line.size();) {
      const ssize_t written = write(STDOUT_FILENO, line.data() + at, line.size() - at);
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) {
        is_to_end = true;  // the daemon is gone
        return;
      }
      at += static_cast<size_t>(written);
    }
  }

  // Whether to go on.
  bool Progress(uint64_t written, uint64_t bytes) {
    const auto now = std::chrono::steady_clock::now();
    if (told_ && now - *told_ < kTellEvery) return !is_to_end;
    told_ = now;
    CopyPartReply reply;
    reply.set_is_running(true);
    reply.set_written(written);
    reply.set_bytes(bytes);
    Tell(reply);
    return !is_to_end;
  }

 private:
  std::optional<std::chrono::steady_clock::time_point> told_;
};

// So that its name is there after a loss of power.
absl::Status SyncParent(const std::string& directory) {
  const std::string parent = std::filesystem::path(directory).parent_path();
  const UniqueFd fd(
      open(parent.empty() ? "." : parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // Who may not read it has made nothing in it.
  if (!fd && errno == EACCES) return absl::OkStatus();
  if (!fd || (fsync(fd.get()) != 0 && errno != EINVAL && errno != EROFS)) {
    return absl::ErrnoToStatus(errno, "sync the directory " + parent);
  }
  return absl::OkStatus();
}

// Made by who leads, if the one that it is in is there; `made`: it was. Others wait for it.
absl::StatusOr<std::unique_ptr<ColdStore>> OpenDirectory(const CopyPartRequest& request,
                                                         const durable::CopyPace& pace,
                                                         bool& made) {
  if (request.has_lead() && !durable::IsS3Place(request.directory())) {
    made = mkdir(request.directory().c_str(), 0777) == 0;
    if (!made && errno != EEXIST) {
      return absl::ErrnoToStatus(errno, "make the directory " + request.directory());
    }
    // Also of one that was there: whoever made it may not have come to that.
    if (absl::Status status = SyncParent(request.directory()); !status.ok()) return status;
  }
  const Time begin = pace.now();
  while (true) {
    auto store = OpenStorage(request.directory());
    if (!absl::IsNotFound(store.status()) || pace.now() - begin >= pace.ready_within) return store;
    if (!pace.pause(pace.look_every)) return absl::CancelledError("the copy was cancelled");
  }
}

durable::CopyTask TaskOf(const CopyPartRequest& request, const std::string& job, uint64_t place) {
  durable::CopyTask task;
  task.part.job = job;
  task.part.place = place;
  task.part.version = {Timeline{request.timeline()}, Step{request.step()}};
  task.part.id = request.id();
  for (const uint64_t rank : request.ranks()) task.part.ranks.push_back(Rank{rank});
  for (const CopySlot& slot : request.decoded()) {
    task.part.decoded.emplace(Rank{slot.rank()}, slot.segment());
  }
  task.node = NodeSlot{request.node()};
  return task;
}

uint64_t UnixMs() {
  const auto since = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(since).count());
}

// The directory that the copy's own is in.
absl::StatusOr<std::unique_ptr<ColdStore>> OpenShelf(const CopyPartRequest& request) {
  return OpenStorage(std::filesystem::path(request.directory()).parent_path().string());
}

absl::StatusOr<durable::LeadTask> LeadTaskOf(const CopyPartRequest& request,
                                             durable::CopyTask own) {
  durable::LeadTask task;
  task.own = std::move(own);
  task.order = request.lead().order();
  task.order.set_written_ms(UnixMs());
  if (task.order.is_own()) {
    const auto shelf = OpenShelf(request);
    if (!shelf.ok()) return shelf.status();
    (void)durable::RemoveUnfinished(**shelf, task.order.job());  // what cannot go is told later
    const auto written = durable::NextWrittenMs(**shelf, task.order.job(), UnixMs());
    if (!written.ok()) return written.status();
    task.order.set_written_ms(*written);
  }
  for (const uint64_t node : request.lead().nodes()) task.nodes.push_back(NodeSlot{node});
  for (const std::string& text : request.lead().map()) {
    auto mapping = durable::ParseKeyMapping(text);
    if (!mapping.ok()) return mapping.status();
    task.map.push_back(*std::move(mapping));
  }
  return task;
}

absl::StatusOr<CopyPartReply> Survey(const CopyPartRequest& request, const std::string& job) {
  const auto shelf = OpenStorage(request.directory());
  if (!shelf.ok()) return shelf.status();
  const absl::StatusOr<std::vector<durable::ShelvedCopy>> copies =
      durable::ListCopies(**shelf, job);
  if (!copies.ok()) return copies.status();
  CopyPartReply last;
  last.set_is_done(true);
  for (const durable::ShelvedCopy& copy : *copies) {
    if (!copy.is_complete) continue;
    *last.mutable_newest() = copy.order;
    const uint64_t now = UnixMs();  // clocks of two nodes may differ
    last.set_newest_age_ms(now - std::min(now, copy.order.written_ms()));
    break;
  }
  return last;
}

absl::StatusOr<std::unique_ptr<ColdStore>> OpenToRead(const std::string& directory) {
  return OpenStorage(directory, /*writes=*/false);
}

absl::StatusOr<CopyPartReply> Search(const CopyPartRequest& request, const std::string& job) {
  const auto shelf = OpenToRead(request.directory());
  if (!shelf.ok()) return shelf.status();
  return durable::SearchShelf(**shelf, request.directory(), job);
}

absl::StatusOr<CopyPartReply> Describe(const CopyPartRequest& request) {
  const auto store = OpenToRead(request.directory());
  if (!store.ok()) return store.status();
  return durable::DescribeSlabs(**store, request);
}

absl::StatusOr<CopyPartReply> Load(const CopyPartRequest& request, Teller& teller) {
  const auto store = OpenToRead(request.directory());
  if (!store.ok()) return store.status();
  ShmSegmentStore segments(UINT64_MAX, ShmSegmentStore::Descriptors::kClosed);
  return durable::FillSlots(**store, segments, request, [&](uint64_t written, uint64_t bytes) {
    return teller.Progress(written, bytes);
  });
}

// The copies beside the one that is complete.
void Prune(const CopyPartRequest& request, const std::string& job, CopyFinished& finished) {
  const auto shelf = OpenShelf(request);
  durable::PrunedCopies pruned;
  pruned.status = shelf.status();
  if (shelf.ok()) {
    pruned = durable::PruneCopies(**shelf, job, request.id(), request.lead().keep());
    // Of writers that died, where the file system gives a name to what is not whole.
    pruned.status.Update(
        (*shelf)->RemoveLeftovers("", std::chrono::system_clock::now() - kLeftoverAfter).status());
  }
  for (const std::string& name : pruned.removed) finished.add_removed(name);
  finished.set_prune_error(std::string(pruned.status.message()));
}

absl::StatusOr<CopyPartReply> Write(const CopyPartRequest& request, const std::string& job,
                                    uint64_t place, Teller& teller) {
  durable::CopyPace pace{.now = Now, .pause = Pause};
  if (request.awaits_decoding()) pace.ready_within = kDecodedWithin;
  bool made = false;
  const auto directory = OpenDirectory(request, pace, made);
  if (!directory.ok()) return directory.status();
  durable::PacedColdOptions limit;
  limit.bytes_per_s = request.bytes_per_s();
  limit.now = Now;
  limit.pause = [](Duration duration) { (void)Pause(duration); };
  durable::PacedColdStore store(**directory, std::move(limit));
  ShmSegmentStore segments(UINT64_MAX, ShmSegmentStore::Descriptors::kClosed);
  CopyPartReply last;
  const auto progress = [&](uint64_t written, uint64_t bytes) {
    last.set_written(bytes);
    last.set_bytes(bytes);
    return teller.Progress(written, bytes);
  };
  durable::CopyTask task = TaskOf(request, job, place);
  last.set_is_done(true);
  if (!request.has_lead()) {
    const absl::Status status = FollowCopy(segments, store, task, pace, progress);
    if (!status.ok()) return status;
    return last;
  }
  const absl::StatusOr<durable::LeadTask> lead = LeadTaskOf(request, std::move(task));
  if (!lead.ok()) return lead.status();
  const auto finished = LeadCopy(segments, store, *lead, pace, progress);
  if (!finished.ok()) {
    if (made) (void)rmdir(request.directory().c_str());  // if it is empty again
    return finished.status();
  }
  CopyFinished& whole = *last.mutable_finished();
  whole.set_tensors(finished->tensors);
  whole.set_values(finished->values);
  whole.set_bytes(finished->bytes);
  whole.set_tensors_left_out(finished->tensors_left_out);
  whole.set_has_index(finished->has_index);
  for (const std::string& key : finished->left_out) {
    if (whole.left_out_size() < kLeftOutMax) whole.add_left_out(CleanText(key, kTextBytesMax));
  }
  if (request.lead().keep() != 0) Prune(request, job, whole);
  return last;
}

// What the last line says.
absl::StatusOr<CopyPartReply> CarryOut(const CopyPartRequest& request, const std::string& job,
                                       uint64_t place, Teller& teller) {
  switch (request.what()) {
    case CopyPartRequest::SURVEY:
      return Survey(request, job);
    case CopyPartRequest::SEARCH:
      return Search(request, job);
    case CopyPartRequest::DESCRIBE:
      return Describe(request);
    case CopyPartRequest::LOAD:
      return Load(request, teller);
    default:
      return Write(request, job, place, teller);
  }
}

// A daemon that takes this one's place takes the slots over, and may hand out those that this one
// writes to: no instruction of this process runs once its daemon has ended.
void EndWithDaemon() {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  pollfd output{STDOUT_FILENO, 0, 0};
  const bool had_ended = poll(&output, 1, 0) > 0 && (output.revents & POLLERR) != 0;
  if (had_ended) _exit(1);  // nobody reads any more
}

}  // namespace

absl::Status RunDrain(const DrainOptions& options, const std::string& job, uint64_t place) {
  CopyPartRequest request;
  const bool is_hex = !options.order.empty() && options.order.size() % 2 == 0 &&
                      std::ranges::all_of(options.order, absl::ascii_isxdigit);
  if (!is_hex || !request.ParseFromString(absl::HexStringToBytes(options.order))) {
    return absl::InvalidArgumentError(
        "drain_order: needed an order of this node's daemon, which starts the role drain itself");
  }
  EndOnSignals();
  if (request.what() == CopyPartRequest::LOAD) EndWithDaemon();
  (void)prctl(PR_SET_NAME, kProcessName);  // started as /proc/self/exe, it would be "exe"
  // Training goes on beside a copy that is written; trainers wait for one that is read.
  if (request.what() == CopyPartRequest::START) {
    (void)setpriority(PRIO_PROCESS, 0, kLowestPriority);
  }
  // Rather than any trainer: the daemon's own protection is inherited.
  if (std::ofstream score("/proc/self/oom_score_adj"); score) score << kFirstToGo;
  umask(022);  // a copy is for others to read, too
  Teller teller;
  const absl::StatusOr<CopyPartReply> last = CarryOut(request, job, place, teller);
  CopyPartReply failed;
  failed.set_error(CleanText(std::string(last.status().message()), kTextBytesMax));
  failed.set_is_damaged(absl::IsDataLoss(last.status()));
  teller.Tell(last.ok() ? *last : failed);
  return absl::OkStatus();
}

}  // namespace unreft::smp
