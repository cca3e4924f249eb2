#include "tools/cli/rank_group.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/signalfd.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <csignal>
#include <string>
#include <string_view>

namespace unreft::cli {
namespace {

constexpr int kLookInterval = 100;  // ms

bool IsReady(int fd, short events) {
  pollfd entry{fd, events, 0};
  return poll(&entry, 1, 0) > 0;
}

// As much as goes without waiting for a reader; false: no more does now.
bool WriteSome(int fd, std::string& bytes) {
  while (!bytes.empty() && IsReady(fd, POLLOUT)) {
    // So much is taken at once by what is ready.
    const ssize_t n = write(fd, bytes.data(), std::min<size_t>(bytes.size(), PIPE_BUF));
    if (n > 0) {
      bytes.erase(0, static_cast<size_t>(n));
    } else if (n < 0 && errno != EINTR && errno != EAGAIN) {
      bytes.clear();  // nobody reads any more; training goes on
    }
  }
  return bytes.empty();
}

}  // namespace

RankGroup::~RankGroup() {
  SignalAll(SIGKILL);
  for (Member& member : members_) {
    if (member.running && member.process.WaitEnd(options_.kill_wait)) Reap(member);
  }
}

absl::Status RankGroup::Start() {
  OwnedFd nothing(open("/dev/null", O_RDONLY | O_CLOEXEC));
  for (uint32_t rank = 0; rank < options_.ranks; ++rank) {
    if (absl::Status status = StartRank(rank, nothing.get()); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status RankGroup::StartRank(uint32_t rank, int nothing_fd) {
  SpawnRequest request{.argv = options_.command,
                       .environment = options_.environment,
                       .new_group = true,
                       .death_signal = SIGKILL,
                       .stdin_fd = nothing_fd};
  if (!options_.rank_environment.empty()) {
    const auto& own = options_.rank_environment[rank];
    request.environment.insert(request.environment.end(), own.begin(), own.end());
  }
  for (const char* name : {"RANK", "LOCAL_RANK"}) {
    request.environment.emplace_back(name, std::to_string(rank));
  }
  OwnedFd out;
  OwnedFd err;
  if (options_.prefix_output) {
    absl::StatusOr<OwnedFd> added = AddOutput(rank, STDOUT_FILENO);
    if (!added.ok()) return added.status();
    out = std::move(*added);
    added = AddOutput(rank, STDERR_FILENO);
    if (!added.ok()) return added.status();
    err = std::move(*added);
    request.stdout_fd = out.get();
    request.stderr_fd = err.get();
  }
  absl::StatusOr<pid_t> pid = Spawn(request);
  if (!pid.ok()) return pid.status();
  absl::StatusOr<ProcessHandle> process = ProcessHandle::Open(*pid);
  if (!process.ok()) {
    kill(-*pid, SIGKILL);
    waitpid(*pid, nullptr, 0);
    return process.status();
  }
  members_.push_back({rank, std::move(*process)});
  return absl::OkStatus();
}

absl::StatusOr<OwnedFd> RankGroup::AddOutput(uint32_t rank, int target) {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) return absl::ErrnoToStatus(errno, "make a pipe");
  fcntl(fds[0], F_SETFL, O_NONBLOCK);
  outputs_.push_back({OwnedFd(fds[0]), target, LinePrefixer(fmt::format("[{}] ", rank))});
  return OwnedFd(fds[1]);
}

std::vector<pid_t> RankGroup::pids() const {
  std::vector<pid_t> pids;
  pids.reserve(members_.size());
  for (const Member& member : members_) pids.push_back(member.process.pid());
  return pids;
}

absl::StatusOr<AttemptEnd> RankGroup::Run(int signal_fd) {
  while (AnyRunning()) {
    if (absl::Status status = PollOnce(signal_fd); !status.ok()) return status;
    CollectEnds();
    StopIfDone();
    StopIfMoved();
    if (absl::Status status = StopIfLate(); !status.ok()) return status;
  }
  return PassRestOn(signal_fd);
}

bool RankGroup::AnyRunning() const {
  return std::any_of(members_.begin(), members_.end(), [](const Member& m) { return m.running; });
}

// Waits for the next event, handles signals and output; ends are seen by CollectEnds.
absl::Status RankGroup::PollOnce(int signal_fd) {
  std::vector<pollfd> entries = {{signal_fd, POLLIN, 0}};
  for (const Member& member : members_) {
    if (member.running) entries.push_back({member.process.fd(), POLLIN, 0});
  }
  if (!unwritten_.empty()) {
    entries.push_back({unwritten_.front().first, POLLOUT, 0});
  } else {
    for (const Output& output : outputs_) {
      if (output.source.valid()) entries.push_back({output.source.get(), POLLIN, 0});
    }
  }
  const std::optional<Deadline>& next = give_up_at_ ? give_up_at_ : kill_at_;
  // What a rank has done, and what an operator wants, is seen by looking alone.
  const int longest = options_.has_done || options_.why_to_end ? kLookInterval : -1;
  // They are of ranks that run: what is left to be passed on is waited for alone.
  const bool is_bounded = next && AnyRunning();
  const int ready = poll(entries.data(), entries.size(), is_bounded ? next->left_ms() : longest);
  if (ready < 0 && errno != EINTR) return absl::ErrnoToStatus(errno, "wait for the ranks");
  if (ready > 0 && entries[0].revents != 0) {
    signalfd_siginfo info{};
    if (read(signal_fd, &info, sizeof(info)) == sizeof(info)) {
      OnSignal(static_cast<int>(info.ssi_signo));
    }
  }
  PassOutputOn();
  return absl::OkStatus();
}

void RankGroup::OnSignal(int signal) {
  ++signals_;
  // The first is heard while they are stopped for another reason, too.
  if (end_.signal && kill_at_) kill_at_ = Deadline(Milliseconds(0));
  if (!end_.signal) end_.signal = signal;
  BeginStop();
}

void RankGroup::CollectEnds() {
  std::optional<RankEnd> failure;
  for (Member& member : members_) {
    if (!member.running || !member.process.WaitEnd(Milliseconds(0))) continue;
    const RankEnd end = Reap(member);
    // Of several at once the killed one is the cause: its peers only report that it is gone.
    const bool better =
        !failure || (WIFSIGNALED(end.wait_status) && !WIFSIGNALED(failure->wait_status));
    const bool has_done = options_.has_done && options_.has_done(end.rank);
    if (end.failed() && !has_done && better) failure = end;
  }
  if (!failure || kill_at_) return;  // while stopping, ends are our own doing
  end_.failure = failure;
  BeginStop();
}

RankEnd RankGroup::Reap(Member& member) {
  const pid_t pid = member.process.pid();
  // Its group before itself: until it is waited for, nobody else can get that group's number.
  kill(-pid, SIGKILL);
  RankEnd end{.rank = member.rank, .pid = pid};
  waitpid(pid, &end.wait_status, 0);
  member.running = false;
  return end;
}

void RankGroup::BeginStop() {
  if (kill_at_) return;
  kill_at_ = Deadline(options_.grace);
  SignalAll(SIGTERM);
}

void RankGroup::StopIfDone() {
  if (!options_.has_done || kill_at_) return;
  const auto has_done = [&](const Member& member) { return options_.has_done(member.rank); };
  if (!done_at_ && std::ranges::all_of(members_, has_done)) done_at_ = Deadline(options_.done_wait);
  if (done_at_ && done_at_->passed() && AnyRunning()) BeginStop();
}

// Where some rank has ended already the attempt is about to be over.
void RankGroup::StopIfMoved() {
  if (!options_.why_to_end || kill_at_ || !std::ranges::all_of(members_, &Member::running)) return;
  end_.moved = options_.why_to_end();
  if (end_.moved) BeginStop();
}

absl::Status RankGroup::StopIfLate() {
  if (give_up_at_ && give_up_at_->passed() && AnyRunning()) {
    const auto late = std::find_if(members_.begin(), members_.end(),
                                   [](const Member& member) { return member.running; });
    return absl::DeadlineExceededError(
        fmt::format("rank {} (pid {}) has not ended {} ms after SIGKILL", late->rank,
                    late->process.pid(), options_.kill_wait.count()));
  }
  if (!kill_at_ || give_up_at_ || !kill_at_->passed()) return absl::OkStatus();
  SignalAll(SIGKILL);
  give_up_at_ = Deadline(options_.kill_wait);
  return absl::OkStatus();
}

void RankGroup::SignalAll(int signal) {
  for (const Member& member : members_) {
    if (member.running) kill(-member.process.pid(), signal);
  }
}

// A little of each at a time: a rank that talks without end, or a reader that stalls, holds up
// nothing but output.
void RankGroup::PassOutputOn() {
  std::array<char, 16 << 10> buffer;
  const bool is_read = unwritten_.empty();
  for (Output& output : outputs_) {
    if (!is_read || !output.source.valid()) continue;
    const ssize_t n = read(output.source.get(), buffer.data(), buffer.size());
    if (n > 0) {
      PassOn(output, output.lines.Take({buffer.data(), static_cast<size_t>(n)}));
    } else if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
      output.source.reset();
      PassOn(output, output.lines.Rest());
    }
  }
  while (!unwritten_.empty()) {
    auto& [target, lines] = unwritten_.front();
    if (!WriteSome(target, lines)) return;
    unwritten_.pop_front();
  }
}

void RankGroup::PassOn(const Output& output, std::string lines) {
  if (!lines.empty()) unwritten_.emplace_back(output.target, std::move(lines));
}

// Of ranks that have all ended: what is there. Who holds a pipe yet is none of them. A signal says
// not to wait for a reader any more.
absl::StatusOr<AttemptEnd> RankGroup::PassRestOn(int signal_fd) {
  const uint64_t before = signals_;
  while (signals_ == before) {
    for (Output& output : outputs_) {
      if (!output.source.valid() || IsReady(output.source.get(), POLLIN)) continue;
      output.source.reset();
      PassOn(output, output.lines.Rest());
    }
    const auto has_more = [](const Output& output) { return output.source.valid(); };
    if (unwritten_.empty() && std::ranges::none_of(outputs_, has_more)) break;
    if (absl::Status status = PollOnce(signal_fd); !status.ok()) return status;
  }
  return end_;
}

}  // namespace unreft::cli
