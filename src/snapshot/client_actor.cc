#include "snapshot/client_actor.h"

#include <algorithm>
#include <utility>

#include "base/text.h"
#include "snapshot/registered_layout.h"

namespace unreft::snapshot {
namespace {

long long Milliseconds(Duration duration) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(duration).count();
}

// A waiter's callback from one that only wants the status.
Waiter<Unit>::Done ToUnit(ClientActor::Done done) {
  return [done = std::move(done)](const absl::StatusOr<Unit>& answer) mutable {
    done(answer.status());
  };
}

absl::StatusOr<Unit> FromStatus(absl::Status status) {
  if (!status.ok()) return status;
  return Unit{};
}

absl::StatusOr<layout::TensorTable> CheckedTable(const std::vector<BoundTensor>& tensors) {
  for (const BoundTensor& tensor : tensors) {
    if (tensor.data == nullptr) {
      return absl::InvalidArgumentError(fmt::format("tensor {}: no data", tensor.spec.name));
    }
  }
  return layout::TensorTable::Create(SpecsOf(tensors));
}

}  // namespace

absl::Status Advised(const absl::Status& status) {
  if (!absl::IsDataLoss(status)) return status;
  return absl::DataLossError(
      fmt::format("{}; start the job again: what does not verify is put "
                  "aside, and the newest version that does is restored",
                  std::string(status.message())));
}

ClientActor::ClientActor(Executor& executor, Connector& connector, SegmentStore& segments,
                         DeviceCopier& copier, Random random, Hello identity,
                         const ClientOptions& options)
    : executor_(executor),
      segments_(segments),
      copier_(copier),
      options_(options),
      rank_(identity.rank),
      world_(identity.world),
      attempt_(identity.attempt),
      warm_slots_(segments),
      restorer_(warm_slots_, copier, options.restore_threads, options.device_restore_threads),
      session_(executor, connector, random, std::move(identity), options.session, *this),
      follower_(executor, session_, segments, copier, options_),
      capture_(executor, copier, options.capture, board_, *this),
      connect_waiter_(executor),
      restore_waiter_(executor),
      extras_waiter_(executor),
      register_waiter_(executor),
      ready_waiter_(executor),
      ever_committed_waiter_(executor),
      fates_(executor, options.versions_remembered) {}

void ClientActor::Start() { session_.Start(); }

void ClientActor::Close() { session_.Close(); }

void ClientActor::Fail(Done done, absl::Status status) {
  executor_.Post(
      [done = std::move(done), status = std::move(status)]() mutable { done(std::move(status)); });
}

absl::AnyInvocable<std::string()> ClientActor::Late(std::string what, Duration timeout) const {
  return [this, what = std::move(what), timeout] {
    return fmt::format("{} within {} ms ({})", what, Milliseconds(timeout), session_.Connection());
  };
}

void ClientActor::WhenConnected(Done done) {
  if (!refused_.ok()) return Fail(std::move(done), refused_);
  if (session_.connected()) return Fail(std::move(done), absl::OkStatus());
  auto unavailable = [this, done = std::move(done)](absl::Status status) mutable {
    // It answers, and has a reason: to go on without it would be another thing.
    const absl::Status& refusal = session_.problem();
    if (absl::IsDeadlineExceeded(status) && absl::IsAlreadyExists(refusal)) {
      status = absl::AlreadyExistsError(fmt::format("{}; tried for {} ms",
                                                    std::string(refusal.message()),
                                                    Milliseconds(options_.connect_timeout)));
    } else if (absl::IsDeadlineExceeded(status)) {
      status = absl::UnavailableError(fmt::format(
          "{}; `unreft status` says whether it is up, `unreft up --supervise` starts it",
          std::string(status.message())));
    }
    done(std::move(status));
  };
  connect_waiter_.Wait(options_.connect_timeout,
                       Late("the daemon did not answer", options_.connect_timeout),
                       ToUnit(std::move(unavailable)));
}

// --- Restore ---

void ClientActor::RestoreBegin(absl::AnyInvocable<void(absl::StatusOr<Restored>)> done,
                               std::optional<Step> at_or_before) {
  capture_.WhenCopied(lifetime_.Bind([this, at_or_before, done = std::move(done)]() mutable {
    AskForDecision(at_or_before, std::move(done));
  }));
}

void ClientActor::AskForDecision(std::optional<Step> at_or_before,
                                 absl::AnyInvocable<void(absl::StatusOr<Restored>)> done) {
  if (!refused_.ok()) return done(refused_);
  follower_.Cancel(absl::CancelledError("the restore was begun anew"));
  if (restore_open_.exchange(false)) warm_slots_.Clear();
  timeline_ = Timeline{};
  session_.Follow(timeline_);
  capture_.CloseTimeline("its restore is not decided");
  const std::string what = fmt::format("no decision what attempt {} restores", attempt_);
  restore_waiter_.Wait(options_.restore_timeout, Late(what, options_.restore_timeout),
                       std::move(done));
  // NOLINTNEXTLINE(clang-analyzer-cplusplus.NewDeleteLeaks): AnyInvocable owns what it was given
  at_or_before_ = at_or_before;
  session_.Ask(RestoreRequest{.request = ++last_request_,
                              .any_world = options_.any_world,
                              .has_at_or_before = at_or_before.has_value(),
                              .at_or_before = at_or_before.value_or(Step{})});
}

void ClientActor::OnDecision(Decision decision) {
  if (!restore_waiter_.waiting()) return;
  warm_slots_.Expect({});  // the trainer reads what is not mapped yet as fast as it could be
  restore_waiter_.Answer(Accept(std::move(decision)));
  if (!restore_open_) UnmapLater();
}

void ClientActor::MapAhead(std::vector<WireSlot> slots) {
  slots.resize(std::min(slots.size(), options_.map_ahead_slots_max));
  warm_slots_.Expect(std::move(slots));
  if (std::exchange(mapping_ahead_, true)) return;
  executor_.Post(lifetime_.Bind([this] { MapSome(); }));
}

void ClientActor::MapSome() {
  mapping_ahead_ = warm_slots_.MapSome(options_.map_ahead_chunk_bytes);
  if (mapping_ahead_) executor_.Post(lifetime_.Bind([this] { MapSome(); }));
}

// In a turn of its own: whoever waits for the present one gets the answer first.
void ClientActor::UnmapLater() {
  executor_.Post(lifetime_.Bind([this] { warm_slots_.Clear(); }));
}

absl::StatusOr<Restored> ClientActor::Accept(Decision decision) {
  const absl::Status status = decision.status.ToStatus();
  if (decision.kind != DecisionKind::kFresh && decision.kind != DecisionKind::kRestored) {
    return status.ok() ? absl::InternalError("the daemon decided nothing, without a reason")
                       : status;
  }
  if (decision.kind == DecisionKind::kRestored && at_or_before_ &&
      decision.version.step > *at_or_before_) {
    return absl::UnimplementedError(
        fmt::format("step {} or an earlier one is to be restored, and step {} was decided: the "
                    "daemons are of an earlier release, which restores the newest",
                    *at_or_before_, decision.version.step));
  }
  Restored restored{.fresh = decision.kind == DecisionKind::kFresh,
                    .version = decision.version,
                    .timeline = decision.timeline};
  if (!restored.fresh) {
    restored.source_world = decision.source_world == 0 ? world_ : decision.source_world;
    restored.durable_copy = std::move(decision.durable_copy);
  }
  restored.tensors = FromWire(std::move(decision.tensors));
  const RestoreReport report = TakeExtras(decision.extras, restored.extras);
  ReportRead(report);
  if (!report.status.ok()) return Advised(report.status);
  restore_open_ = !restored.fresh;
  OpenTimeline(restored);
  return restored;
}

void ClientActor::OpenTimeline(const Restored& restored) {
  timeline_ = restored.timeline;
  session_.Follow(timeline_);
  capture_.SetTimeline(timeline_);
  protection_.Begin(restored.fresh ? std::nullopt : std::optional(restored.version.step),
                    executor_.Now());
  board_.Edit([&](ClientStatus& status) {
    status.timeline = timeline_;
    status.last_captured = status.last_sealed = status.last_committed = std::nullopt;
  });
}

void ClientActor::RequestPlan(std::vector<BoundTensor> targets, PlanFollower::GotPlan done) {
  absl::Status status = refused_;
  if (status.ok()) status = layout::TensorTable::Create(SpecsOf(targets)).status();
  if (status.ok()) status = copier_.Accept(targets);
  if (status.ok() && IsOnDevice(targets)) status = copier_.BeginRestore();
  if (!status.ok()) {
    return executor_.Post([done = std::move(done), status]() mutable { done(status); });
  }
  capture_.NoteRestore();
  follower_.Begin(std::move(targets), std::move(done));
}

void ClientActor::FinishRead(const RestoreReport& report, PlanFollower::Finished done) {
  if (!report.status.ok()) {
    follower_.Cancel(report.status);
    ReportRead(report);
  }
  follower_.Finish(lifetime_.Bind([this, status = report.status, done = std::move(done)](
                                      absl::StatusOr<std::optional<RestorePlan>> more) mutable {
    // Copies to a device may be under way still, those that were staged among them; also when the
    // read has failed, after which the targets are the caller's again.
    const absl::Status copied = copier_.EndRestore();
    if (!status.ok()) return done(Advised(status));
    if (more.ok() && !copied.ok()) more = copied;
    // Not when it was another read's begin that ended this one.
    if (!more.ok() && !follower_.reading()) ReportRead({.status = more.status()});
    if (!more.ok()) return done(Advised(more.status()));
    done(std::move(more));
  }));
}

void ClientActor::ReportRead(const RestoreReport& report) {
  if (report.status.ok()) return;
  restore_open_ = false;
  UnmapLater();
  session_.Tell(RestoreDone{report.status, report.bad_slot, report.bad_generation});
}

void ClientActor::RestoreRead(std::vector<BoundTensor> targets, Done done) {
  auto read = [this, targets, done = std::move(done)](absl::StatusOr<RestorePlan> plan) mutable {
    if (!plan.ok()) return done(plan.status());
    ReadPlan(*plan, std::move(targets), std::move(done));
  };
  RequestPlan(std::move(targets), lifetime_.Bind(std::move(read)));
}

void ClientActor::ReadPlan(const RestorePlan& plan, std::vector<BoundTensor> targets, Done done) {
  const RestoreReport report = restorer_.Read(plan, targets);
  FinishRead(report, lifetime_.Bind([this, targets = std::move(targets), done = std::move(done)](
                                        absl::StatusOr<std::optional<RestorePlan>> more) mutable {
    if (!more.ok() || !*more) return done(more.status());
    ReadPlan(**more, std::move(targets), std::move(done));
  }));
}

void ClientActor::RestoreEnd() {
  if (!restore_open_.exchange(false)) return;
  follower_.Cancel(absl::CancelledError("the restore was ended"));
  session_.Tell(RestoreDone{});
  UnmapLater();
}

// --- Registration ---

void ClientActor::Register(GivenTensors tensors, uint64_t extras_bytes, Done done) {
  capture_.WhenCopied(lifetime_.Bind(
      [this, tensors = std::move(tensors), extras_bytes, done = std::move(done)]() mutable {
        absl::Status taken = TakeTensors(std::move(tensors));
        if (!taken.ok()) return Fail(std::move(done), std::move(taken));
        AskForSlots(extras_bytes, std::move(done));
      }));
}

absl::Status ClientActor::TakeTensors(GivenTensors tensors) {
  if (!refused_.ok()) return refused_;
  absl::StatusOr<layout::TensorTable> table = CheckedTable(tensors.shards);
  if (!table.ok()) return table.status();
  capture_.Suspend("the daemon has not taken over the tensors yet", /*passes=*/true);
  // What was registered before is no longer what the trainer has: no answer to that is installed,
  // neither one that comes nor one that waits.
  session_.EndRegistration();
  ++last_answer_;
  if (absl::Status status = copier_.Accept(tensors.shards); !status.ok()) {
    capture_.Bind({}, {}, {});
    capture_.Suspend(fmt::format("not registered: {}", std::string(status.message())));
    return status;
  }
  table_ = *std::move(table);
  memory_.clear();
  for (const BoundTensor& shard : tensors.shards) {
    memory_.push_back({shard.data, shard.on_device()});
  }
  capture_.Bind(table_, memory_, std::move(tensors.ends));
  return absl::OkStatus();
}

void ClientActor::AskForSlots(uint64_t extras_bytes, Done done) {
  if (!refused_.ok()) return Fail(std::move(done), refused_);
  // Before the daemon looks for room: what is mapped may be all that keeps a removed segment.
  warm_slots_.Clear();
  register_waiter_.Wait(options_.register_timeout,
                        Late("no answer to the registration", options_.register_timeout),
                        ToUnit(std::move(done)));
  session_.Ask(unreft::Register{
      .request = ++last_request_, .tensors = ToWire(table_.specs()), .extras_bytes = extras_bytes});
}

void ClientActor::OnRegistered(Registered registered) {
  const uint64_t number = ++last_answer_;
  absl::StatusOr<LayoutPtr> layout = LayoutFor(registered, table_, memory_, options_.capture);
  if (!layout.ok()) return EndRegistering(layout.status());
  if ((*layout)->staging_bytes() <= staging_bytes_) {
    return EndRegistering(Install(*std::move(layout), registered));
  }
  // What a snapshot under way has staged lies where room is made.
  capture_.Suspend("room is made on the device for what its snapshots stage", /*passes=*/true);
  capture_.WhenCopied(lifetime_.Bind(
      [this, number, layout = *layout, registered = std::move(registered)]() mutable {
        if (number == last_answer_) EndRegistering(Install(std::move(layout), registered));
      }));
}

void ClientActor::EndRegistering(const absl::Status& status) {
  if (!status.ok()) {
    const std::string why = fmt::format("not registered: {}", std::string(status.message()));
    capture_.Suspend(why);
    board_.Problem(why);
  }
  register_waiter_.Answer(FromStatus(status));
}

absl::Status ClientActor::Install(LayoutPtr layout, const Registered& registered) {
  if (layout->on_device()) {
    if (absl::Status s = copier_.Reserve(layout->staging_bytes()); !s.ok()) return s;
    staging_bytes_ = std::max(staging_bytes_, layout->staging_bytes());
  }
  // Mapped anew each time: only so is it sure that the name still stands for the same memory.
  absl::StatusOr<std::shared_ptr<const MappedSlots>> slots =
      MappedSlots::Open(segments_, rank_, registered);
  if (!slots.ok()) return slots.status();
  slots_ = *slots;
  session_.RepeatDoorbells(slots_->incarnation());
  capture_.Install(std::move(layout), slots_);
  return absl::OkStatus();
}

void ClientActor::WaitReady(Duration timeout, Done done) {
  auto late = [this, timeout] {
    return fmt::format("no memory for a snapshot within {} ms: {} ({})", Milliseconds(timeout),
                       std::string(capture_.WhyNotReady().message()), session_.Connection());
  };
  ready_waiter_.Wait(timeout, std::move(late), ToUnit(std::move(done)));
  LookWhetherReady();
}

// Again and again: the grant is a word in shared memory that rings no bell.
void ClientActor::LookWhetherReady() {
  if (!ready_waiter_.waiting()) return;
  const absl::Status why = capture_.WhyNotReady();
  if (!absl::IsUnavailable(why)) return ready_waiter_.Answer(FromStatus(why));
  executor_.After(options_.ready_poll, lifetime_.Bind([this] { LookWhetherReady(); }));
}

void ClientActor::EndWaits(const absl::Status& why) {
  connect_waiter_.Answer(why);
  restore_waiter_.Answer(why);
  extras_waiter_.Answer(why);
  register_waiter_.Answer(why);
  ready_waiter_.Answer(why);
  ever_committed_waiter_.Answer(why);
  if (!follower_.reading()) return;
  follower_.Cancel(why);
  copier_.EndRestore().IgnoreError();  // of what was staged: `why` is what the read ends with
}

// --- Capture ---

absl::StatusOr<SnapshotResult> ClientActor::Snapshot(Step step, std::span<const std::byte> extras,
                                                     void* stream) {
  if (restore_open_) executor_.Post(lifetime_.Bind([this] { RestoreEnd(); }));
  absl::StatusOr<SnapshotResult> result = capture_.Snapshot(step, extras, stream);
  protection_.Snapshot(step, result.status(), result.ok() ? result->reason : "", executor_.Now());
  return result;
}

absl::Status ClientActor::SkipSnapshot(Step step, std::string_view why) {
  std::string said = CleanText(why, kTextBytesMax);
  if (said.empty()) said = "the program took none";
  const absl::Status status = capture_.Skip(step, said);
  protection_.Snapshot(step, status, said, executor_.Now());
  return status;
}

void ClientActor::FenceThen(Task done) { capture_.FenceThen(std::move(done)); }

void ClientActor::WaitCommitted(Step step, Duration timeout, Done done) {
  // Tasks of two threads run in no order: of a snapshot that has just begun we are yet to be told.
  capture_.DeliverReports();
  fates_.Wait({timeline_, step}, timeout, std::move(done));
}

void ClientActor::OnClaimed(const Claimed& claimed, const RandomId& memory) {
  fates_.Started(claimed.version);
  session_.Ring(claimed, memory);
}

void ClientActor::OnProgress(const Progress& progress) { session_.Ring(progress); }

void ClientActor::OnCaptured(Captured captured) { session_.Ring(std::move(captured)); }

void ClientActor::OnGaveUp(GaveUp gave_up) {
  if (gave_up.version.timeline == timeline_) {
    protection_.GaveUp(gave_up.version.step, gave_up.reason);
  }
  fates_.Failed(gave_up.version, gave_up.reason);
  session_.Ring(std::move(gave_up));
}

void ClientActor::OnSkipped(Skipped skipped) {
  fates_.Failed(skipped.version, skipped.reason);
  session_.Ring(std::move(skipped));
}

// --- The session ---

void ClientActor::OnWelcome(const Welcome& welcome) {
  board_.Edit([](ClientStatus& status) { status.connected = true; });
  protection_.Connected();
  connect_waiter_.Answer(Unit{});
  TellIfItCannotBeAsked();
  TellIfItKnowsNoExtras();
  if (timeline_ == Timeline{}) return MapAhead(welcome.sealed);
  if (welcome.timeline <= timeline_) return;
  std::string why = fmt::format(
      "another attempt of the job has begun (timeline {} after {}), to which this "
      "process does not belong",
      welcome.timeline, timeline_);
  board_.Problem(why);
  capture_.CloseTimeline(std::move(why));
}

void ClientActor::OnLost(const absl::Status& why) {
  ++last_answer_;  // what it answered holds no more
  board_.Edit([&](ClientStatus& status) {
    status.connected = false;
    status.last_problem = fmt::format("lost the daemon: {}", std::string(why.message()));
  });
  protection_.Lost(std::string(why.message()));
  follower_.OnLost();
}

void ClientActor::OnRefused(const absl::Status& why) {
  refused_ = why;
  OnLost(why);
  protection_.Refused(std::string(why.message()));
  ever_committed_waiter_.Answer(why);
  capture_.Suspend(fmt::format("refused by the daemon: {}", std::string(why.message())));
  connect_waiter_.Answer(why);
  restore_waiter_.Answer(why);
  extras_waiter_.Answer(why);
  follower_.Cancel(why);
  register_waiter_.Answer(why);
}

void ClientActor::OnVersionState(VersionState state) {
  const bool present = state.version.timeline == timeline_;
  switch (state.phase) {
    case VersionPhase::kSealed:
      if (present) board_.Edit([&](ClientStatus& s) { s.last_sealed = state.version.step; });
      return;
    case VersionPhase::kCommitted:
      if (present) {
        board_.Edit([&](ClientStatus& s) { s.last_committed = state.version.step; });
        protection_.Committed(state.version.step, executor_.Now());
      }
      capture_.NoteCommitted(state.version);
      return fates_.Committed(state.version);
    case VersionPhase::kAbandoned:
      if (present) protection_.GaveUp(state.version.step, state.reason);
      capture_.Abandon(state.version, state.reason);
      return fates_.Failed(state.version, state.reason);
  }
}

}  // namespace unreft::snapshot
