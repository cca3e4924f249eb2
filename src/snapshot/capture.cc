#include "snapshot/capture.h"

#include <cstring>
#include <utility>

#include "base/bounds.h"
#include "base/check.h"
#include "base/crc32c.h"
#include "snapshot/no_memory.h"

namespace unreft::snapshot {

Capture::Capture(Executor& executor, DeviceCopier& copier, const CaptureOptions& options,
                 StatusBoard& board, Events& events)
    : executor_(executor), copier_(copier), options_(options), board_(board), events_(events) {}

template <typename Message>
void Capture::ReportLocked(void (Events::*event)(Message), std::decay_t<Message> message) {
  ReportLocked([this, event, message = std::move(message)]() mutable {
    (events_.*event)(std::move(message));
  });
}

void Capture::ReportLocked(Task report) {
  reports_.push_back(std::move(report));
  if (reports_.size() > 1) return;  // the turn that will deliver is posted already
  executor_.Post(lifetime_.Bind([this] { DeliverReports(); }));
}

void Capture::DeliverReports() {
  std::vector<Task> reports;
  {
    std::lock_guard lock(mutex_);
    reports.swap(reports_);
  }
  for (Task& report : reports) report();
}

// --- Snapshot ---

absl::StatusOr<SnapshotResult> Capture::Snapshot(Step step, std::span<const std::byte> extras,
                                                 void* stream) {
  RunPtr run;
  std::string unfenced = WhyUnfenced(step);
  {
    std::lock_guard lock(mutex_);
    if (!unfenced.empty()) unfenced_ = std::move(unfenced);
    if (absl::Status status = CheckLocked(step); !status.ok()) return status;
    if (std::string why = WhySkipLocked(step); !why.empty()) return SkipLocked(step, why);
    GrantWord grant;
    std::string why;
    const MappedSlot* slot = ClaimLocked(grant, why);
    if (slot == nullptr) return SkipLocked(step, why);
    last_step_ = step;
    const Claimed claimed{grant.slot, grant.generation, {timeline_, step}};
    ReportLocked(
        [this, claimed, memory = slots_->incarnation()] { events_.OnClaimed(claimed, memory); });
    if (extras.size() > slot->extras().size()) {
      return RefuseExtrasLocked(claimed, extras.size(), slot->extras().size());
    }
    absl::Status begun = CatchNoMemory([&] {
      run = BeginLocked(claimed, *slot, extras.size());
      return absl::OkStatus();
    });
    if (!begun.ok()) {
      GiveUpClaimLocked(claimed, std::string(begun.message()), 0);
      return begun;
    }
    run->stream = stream;
  }
  absl::Status status = CatchNoMemory([&] { return Prepare(run, extras); });
  EndPreparation(run, status);
  if (!status.ok()) return status;
  return SnapshotResult{.outcome = Outcome::kStarted};
}

absl::Status Capture::Skip(Step step, std::string why) {
  std::lock_guard lock(mutex_);
  if (absl::Status status = CheckLocked(step); !status.ok()) return status;
  return SkipLocked(step, std::move(why)).status();
}

absl::Status Capture::CheckLocked(Step step) const {
  if (timeline_ == Timeline{}) {
    return absl::FailedPreconditionError(
        fmt::format("snapshot of step {}: {}", step, why_no_timeline_));
  }
  if (step.value > kStepMax) {
    return absl::InvalidArgumentError(
        fmt::format("snapshot of step {}: the largest step is {}", step, kStepMax));
  }
  if (last_step_ && step <= *last_step_) {
    return absl::FailedPreconditionError(
        fmt::format("snapshot of step {}: needed a step beyond {}, the last one of timeline {}",
                    step, *last_step_, timeline_));
  }
  return absl::OkStatus();
}

std::string Capture::WhySkipLocked(Step step) const {
  if (!suspended_.empty()) return suspended_;
  const uint64_t from = slots_->control().capture_from.load(std::memory_order_acquire);
  if (step.value < from) return fmt::format("all ranks start again with step {}", from);
  if (!unfenced_.empty()) return unfenced_;
  if (!run_) return {};
  return fmt::format("the snapshot of step {} is still being copied", run_->version.step);
}

absl::StatusOr<SnapshotResult> Capture::SkipLocked(Step step, std::string why) {
  const std::string problem = fmt::format("step {} skipped: {}", step, why);
  board_.Edit([&](ClientStatus& status) {
    ++status.skipped;
    status.last_problem = problem;
  });
  ReportLocked(&Events::OnSkipped, Skipped{.version = {timeline_, step}, .reason = why});
  return SnapshotResult{.outcome = Outcome::kSkipped, .reason = std::move(why)};
}

const MappedSlot* Capture::GrantedLocked(GrantWord grant, std::string& why) const {
  if (grant.state != GrantState::kGranted) {
    why = uncommitted_.WhyNoneIsFree(board_.Read().connected, had_memory_);
    return nullptr;
  }
  const MappedSlot* slot = slots_->Find(grant.slot);
  // A grant in memory that was made anew meanwhile, or of a slot that the daemon has yet to tell
  // of. What is removed was free, so memory that is mapped and gone does not look granted.
  const SlotStateWord granted{grant.generation, SlotState::kCapturing};
  if (slot == nullptr || slot->state().Encode() != granted.Encode()) {
    why = "the memory for the snapshots is still being prepared";
    return nullptr;
  }
  return slot;
}

absl::Status Capture::WhyNotReady() {
  std::lock_guard lock(mutex_);
  if (timeline_ == Timeline{}) return absl::FailedPreconditionError(why_no_timeline_);
  if (!suspended_.empty()) {
    return suspension_passes_ ? absl::UnavailableError(suspended_)
                              : absl::FailedPreconditionError(suspended_);
  }
  std::string why;
  if (run_) {
    why = fmt::format("the snapshot of step {} is still being copied", run_->version.step);
  } else {
    const uint64_t word = slots_->control().grant.load(std::memory_order_acquire);
    if (GrantedLocked(GrantWord::Decode(word), why) != nullptr) return absl::OkStatus();
  }
  return absl::UnavailableError(why);
}

const MappedSlot* Capture::ClaimLocked(GrantWord& grant, std::string& why) {
  ControlPage& control = slots_->control();
  uint64_t word = control.grant.load(std::memory_order_acquire);
  grant = GrantWord::Decode(word);
  const MappedSlot* slot = GrantedLocked(grant, why);
  if (slot == nullptr) return nullptr;
  GrantWord claimed = grant;
  claimed.state = GrantState::kClaimed;
  if (!control.grant.compare_exchange_strong(word, claimed.Encode(), std::memory_order_acq_rel)) {
    why = "the daemon has just taken back the memory for the snapshot";
    return nullptr;
  }
  had_memory_ = true;
  control.progress.store(ProgressWord{0, static_cast<uint32_t>(grant.generation.value)}.Encode(),
                         std::memory_order_release);
  return slot;
}

absl::Status Capture::RefuseExtrasLocked(const Claimed& claimed, uint64_t needed, uint64_t found) {
  const std::string why = fmt::format("step {}: extras need {} bytes, their region has {}",
                                      claimed.version.step, needed, found);
  GiveUpClaimLocked(claimed, why, needed);
  return absl::ResourceExhaustedError(why);
}

void Capture::GiveUpClaimLocked(const Claimed& claimed, std::string why,
                                uint64_t extras_bytes_needed) {
  board_.Edit([&](ClientStatus& status) {
    ++status.given_up;
    status.last_problem = why;
  });
  ReportLocked(&Events::OnGaveUp, GaveUp{.slot = claimed.slot,
                                         .generation = claimed.generation,
                                         .version = claimed.version,
                                         .reason = std::move(why),
                                         .extras_bytes_needed = extras_bytes_needed});
}

Capture::RunPtr Capture::BeginLocked(const Claimed& claimed, const MappedSlot& slot,
                                     uint64_t extras_bytes) {
  auto run = std::make_shared<Run>();
  run->version = claimed.version;
  run->slot = claimed.slot;
  run->generation = claimed.generation;
  run->layout = layout_;
  run->memory = memory_;
  run->probes = probes_;
  run->slots = slots_;
  run->data = slot.data();
  run->pin = PinLocked(slot);
  run->extras_bytes = extras_bytes;
  run->crcs.resize(layout_->crc_count());
  if (ChecksReplicasLocked(claimed.version.step)) run->digests.resize(layout_->samples().size());
  if (!fenced_) run->since = probed_;
  run->probes_device = probes_device_;
  run_ = run;
  probed_ = nullptr;
  fenced_ = false;
  board_.Edit([](ClientStatus& status) {
    ++status.started;
    status.copying = true;
  });
  return run;
}

// A slot that is granted has all of its pages, which pinning must not be the first to touch.
std::shared_ptr<void> Capture::PinLocked(const MappedSlot& slot) {
  if (!layout_->on_device()) return nullptr;
  std::shared_ptr<void>& pin = pins_[slot.id()];
  if (pin == nullptr) pin = copier_.Pin(slots_, slot.data().first(layout_->padded_bytes()));
  return pin;
}

bool Capture::ChecksReplicasLocked(Step step) const {
  const uint64_t every = layout_->replica_check_every();
  return every != 0 && (!replicas_checked_ || step.value % every == 0);
}

absl::Status Capture::Prepare(const RunPtr& prepared, std::span<const std::byte> extras) {
  Run& run = *prepared;
  run.probed = Probe(run.probes, run.memory, run.version.step, run.probes_device);
  const MappedSlot& slot = *run.slots->Find(run.slot);
  if (!extras.empty()) std::memcpy(slot.extras().data(), extras.data(), extras.size());
  if (run.layout->on_device()) {
    if (absl::Status status = copier_.Begin(run.stream); !status.ok()) return status;
    if (absl::Status status = ProbeDevice(prepared); !status.ok()) return status;
  }
  if (run.layout->volatile_pieces().empty()) return absl::OkStatus();
  absl::StatusOr<std::vector<CopyOp>> staged = copier_.CopyVolatile(
      ToOps(run.layout->volatile_pieces(), *run.memory, run.data.data(), run.crcs), run.stream);
  if (staged.ok()) run.staged = *std::move(staged);
  return staged.status();
}

void Capture::EndPreparation(const RunPtr& run, absl::Status& status) {
  std::lock_guard lock(mutex_);
  status.Update(CatchNoMemory([&] {
    run->AddJobs();
    return absl::OkStatus();
  }));
  run->preparing = false;
  if (status.ok()) probed_ = run->probed;
  if (!status.ok()) CloseLocked(run, std::string(status.message()));
  EndIfDoneLocked(run);
  if (run_) PostPump();
}

// --- Jobs ---

void Capture::PostPump() {
  executor_.Post(lifetime_.Bind([this] { Pump(); }));
}

// All of a device's at once, as a fence gives up what is not with the copier.
Capture::RunPtr Capture::TakeLocked(bool by_executor, CaptureJob& what) {
  if (!run_ || run_->preparing || !run_->closed.empty()) return nullptr;
  if (by_executor && !run_->device.all_taken() && !run_->fencing) {
    what = run_->device.Take(/*queue=*/true);
    ++run_->handing_over;
    return run_;
  }
  CaptureLane& host = run_->host;
  if (!host.ready()) return nullptr;
  if (by_executor && host.queued() == options_.buckets_in_flight) return nullptr;
  what = host.Take(by_executor);
  return run_;
}

Capture::Job Capture::MakeJob(RunPtr run, const CaptureJob& what) {
  Job job{.run = std::move(run), .what = what};
  if (!what.looks()) job.ops = job.run->OpsOf(what, job.scratch);
  return job;
}

void Capture::Pump() {
  while (true) {
    CaptureJob what;
    RunPtr run;
    {
      std::lock_guard lock(mutex_);
      run = TakeLocked(/*by_executor=*/true, what);
    }
    if (!run) return;
    StartJob(std::move(run), what);
  }
}

void Capture::StartJob(RunPtr run, const CaptureJob& what) {
  if (what.kind == CaptureJob::Kind::kCheck && !what.on_device) {
    Job job{.run = run, .what = what};
    const absl::Status status = CatchNoMemory([&] {
      job.written = run->Check(what);
      return absl::OkStatus();
    });
    return FinishJob(job, status, /*by_executor=*/true);
  }
  const absl::Status status = CatchNoMemory([&] {
    Job job = MakeJob(run, what);
    // Moving a vector keeps its buffer, so the operations still point into the scratch.
    std::vector<CopyOp> ops = std::move(job.ops);
    auto done = lifetime_.Bind([this, job = std::move(job)](const absl::Status& status) mutable {
      FinishJob(job, status, /*by_executor=*/true);
      Pump();
    });
    if (what.looks()) {
      copier_.ProbeLater(run->ProbeOpOf(what), std::move(done));
    } else {
      copier_.CopyBucket(std::move(ops), std::move(done));
    }
    return absl::OkStatus();
  });
  if (!status.ok()) {  // then the copier has not taken it
    Job job{.run = run, .what = what};
    FinishJob(job, status, /*by_executor=*/true);
  }
  if (!what.on_device) return;
  std::lock_guard lock(mutex_);
  --run->handing_over;
  ended_.notify_all();
}

void Capture::Help(std::unique_lock<std::mutex>& lock) {
  CaptureJob what;
  RunPtr run = TakeLocked(/*by_executor=*/false, what);
  if (!run) return;
  lock.unlock();
  Job job{.run = run, .what = what};
  const absl::Status status = CatchNoMemory([&]() -> absl::Status {
    if (what.kind == CaptureJob::Kind::kCheck) {
      job.written = run->Check(what);
      return absl::OkStatus();
    }
    job = MakeJob(std::move(run), what);
    return copier_.CopyNow(job.ops);
  });
  FinishJob(job, status, /*by_executor=*/false);
  lock.lock();
}

void Capture::FinishJob(Job& job, const absl::Status& status, bool by_executor) {
  Run& run = *job.run;
  if (job.what.kind == CaptureJob::Kind::kSample) {
    if (status.ok()) run.digests[job.what.index] = Crc32c(job.scratch);
  }
  if (job.what.looks() && job.what.on_device && status.ok()) {
    job.written = run.FoundOnDevice(job.what);
  }
  std::lock_guard lock(mutex_);
  run.lane(job.what).End(job.what, by_executor);
  NoteFoundLocked(job, status);
  if (absl::IsAborted(status)) {
    CloseLocked(job.run, std::string(status.message()));
  } else if (!status.ok()) {
    CloseLocked(job.run, fmt::format("a copy failed: {}", status.ToString()));
  } else if (run.closed.empty()) {
    run.Finish(job.what);
    PublishLocked(run);
    const WrittenTensors written = run.all_written();
    if (written.count > 0 && run.over()) {
      CloseLocked(job.run, WrittenWhileCopied(*run.probed, written));
    }
  }
  ended_.notify_all();
  EndIfDoneLocked(job.run);
}

void Capture::PublishLocked(Run& run) {
  const uint32_t blocks = run.blocks_done();
  run.slots->control().progress.store(
      ProgressWord{blocks, static_cast<uint32_t>(run.generation.value)}.Encode(),
      std::memory_order_release);
  const uint64_t bytes = uint64_t{blocks} * run.layout->block_bytes();
  if (bytes - run.rung_bytes < options_.progress_every_bytes) return;
  run.rung_bytes = bytes;
  ReportLocked(&Events::OnProgress, Progress{.slot = run.slot, .generation = run.generation});
}

// --- The end of a snapshot ---

void Capture::CloseLocked(const RunPtr& run, std::string why) {
  if (run != run_ || !run->closed.empty()) return;
  run->closed = std::move(why);
  EndIfDoneLocked(run);
}

// `run` may be run_ itself: it is not looked at once that is reset.
void Capture::EndIfDoneLocked(const RunPtr& run) {
  if (run != run_ || !run->over()) return;
  const RunPtr ended = std::exchange(run_, nullptr);
  ReportEndLocked(ended);
  WakeLocked();
}

void Capture::ReportEndLocked(const RunPtr& ended) {
  const Run& run = *ended;
  board_.Edit([](ClientStatus& status) { status.copying = false; });
  if (!run.closed.empty()) {
    board_.Edit([&](ClientStatus& status) {
      ++status.given_up;
      status.last_problem = fmt::format("step {} given up: {}", run.version.step, run.closed);
    });
    ReportLocked(&Events::OnGaveUp, GaveUp{.slot = run.slot,
                                           .generation = run.generation,
                                           .version = run.version,
                                           .reason = run.closed});
    return;
  }
  if (run.version.timeline == timeline_) uncommitted_.Captured(run.version.step);
  board_.Edit([&](ClientStatus& status) {
    status.last_captured = run.version.step;
    status.bytes_captured += run.layout->plan().data_bytes() + run.extras_bytes;
  });
  // Put together in the turn: the CRCs of many pieces take their time.
  ReportLocked([this, ended] { events_.OnCaptured(ended->ToCaptured()); });
}

void Capture::WakeLocked() {
  ended_.notify_all();
  for (Waiting& waiting : waiting_) {
    executor_.Post(
        lifetime_.Bind([this, timer = waiting.timer, done = std::move(waiting.done)]() mutable {
          executor_.Cancel(timer);
          done();
        }));
  }
  waiting_.clear();
}

// --- What the daemon says ---

void Capture::SetTimeline(Timeline timeline) {
  std::lock_guard lock(mutex_);
  if (timeline_ == timeline) return;
  timeline_ = timeline;
  uncommitted_.Clear();
  last_step_.reset();
  replicas_checked_ = false;
}

void Capture::NoteCommitted(const Version& version) {
  std::lock_guard lock(mutex_);
  if (version.timeline != timeline_) return;
  replicas_checked_ = true;
  uncommitted_.Committed(version.step);
}

void Capture::CloseTimeline(std::string why) {
  std::lock_guard lock(mutex_);
  timeline_ = Timeline{};
  why_no_timeline_ = std::move(why);
}

void Capture::Suspend(std::string why, bool passes) {
  std::lock_guard lock(mutex_);
  suspended_ = std::move(why);
  suspension_passes_ = passes;
}

void Capture::Install(std::shared_ptr<const CaptureLayout> layout,
                      std::shared_ptr<const MappedSlots> slots) {
  // What is replaced is unmapped and unpinned once the lock is given back.
  std::map<SlotId, std::shared_ptr<void>> pins;
  std::lock_guard lock(mutex_);
  UNREFT_CHECK(memory_->size() == layout->tensor_count(), "the tensors of a layout lie somewhere");
  if (run_ && !slots->Continues(*run_->slots, run_->slot, run_->generation)) {
    CloseLocked(run_, "the memory for the snapshot was made anew");
  }
  if (layout_ == nullptr || layout_->plan().digest() != layout->plan().digest()) {
    replicas_checked_ = false;
    had_memory_ = false;
  }
  layout_.swap(layout);
  slots_.swap(slots);
  pins_.swap(pins);
  suspended_.clear();
}

void Capture::Abandon(const Version& version, const std::string& why) {
  std::lock_guard lock(mutex_);
  if (version.timeline == timeline_) uncommitted_.Abandoned(version.step);
  if (run_ && run_->version == version) CloseLocked(run_, fmt::format("abandoned: {}", why));
}

}  // namespace unreft::snapshot
