#include "smp/node/node.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/format.h"
#include "smp/desk/attempt_in_force.h"
#include "smp/desk/node_memory.h"
#include "smp/job/cluster_records.h"
#include "smp/job/earlier_records.h"
#include "smp/node/admin.h"
#include "smp/protect/protector.h"

namespace unreft::smp {
namespace {

// A memory that is new is as far as what is kept of the job's records.
void BeginWith(const meta::JobRecords& kept, NodeRecord& record) {
  record.AdoptTimelines(OriginsOf(kept.timeline.value), /*unused=*/false);
  const CommitRecord& commit = kept.commit.value;
  if (VersionOf(commit).timeline > record.chain().newest()) return;  // a fresh start, not yet open
  record.SetCommitted(VersionOf(commit), commit.world());
}

// Whether ranks of another attempt are connected here, and wait to be decided for.
bool HasRanksBeside(const NodeState& state, Attempt attempt) {
  return std::ranges::any_of(state.sessions, [&](const auto& of_rank) {
    const RankSession& session = *of_rank.second;
    return !session.superseded && session.timeline == Timeline{} && session.attempt() != attempt;
  });
}

// Whoever follows the newest decision here trains here, wherever it asked from: a daemon that has
// lost its slot may have come back in another one.
void TakeHome(NodeState& state) {
  if (state.homes.empty()) return;
  for (const auto& [rank, session] : state.sessions) {
    const bool follows = !session->superseded && session->timeline == state.decided;
    if (follows) state.homes[rank] = state.options.node;
  }
}

}  // namespace

Node::Node(NodeSeams seams, NodeOptions options) : state_{seams} {
  state_.options = std::move(options);
  state_.prefix = MemoryPrefix(state_.options);
}

Node::~Node() { state_.on_slot_change = nullptr; }

// --- starting ---

void Node::Start(RandomId boot_id, absl::AnyInvocable<void(absl::Status)> done) {
  on_started_ = std::move(done);
  settings_ = std::make_unique<SettingsCheck>(state_.seams, state_.options);
  settings_->Start([this, boot_id](absl::Status status) {
    if (!status.ok()) return OnStarted(std::move(status));
    settings_.reset();
    OpenRecord(boot_id);
  });
}

void Node::OpenRecord(RandomId boot_id) {
  NodeRecord::Open(state_.seams.segments, state_.seams.records, state_.seams.random,
                   state_.seams.log, state_.prefix + "node", boot_id,
                   lifetime_.Bind([this](absl::StatusOr<std::unique_ptr<NodeRecord>> record) {
                     if (!record.ok()) return OnStarted(record.status());
                     state_.record = *std::move(record);
                     OpenKept();
                   }));
}

void Node::OpenKept() {
  KeptRecords::Open(
      state_.seams.executor, state_.seams.segments, state_.seams.records, state_.seams.log,
      state_.prefix + std::string(kRecordsSegment), state_.options.nodes,
      lifetime_.Bind([this](absl::StatusOr<std::unique_ptr<KeptRecords>> kept) {
        if (!kept.ok()) return OnStarted(kept.status());
        state_.kept = *std::move(kept);
        disk_shortage_ =
            std::make_unique<ShortageRetry>(state_.seams.executor, state_.options.memory_retry,
                                            [this] { state_.kept->WriteAgain(); });
        state_.kept->set_on_failure([this] { disk_shortage_->Arm(); });
        absl::Status status = AdoptRecords();
        if (status.ok()) status = AdoptMemory();
        is_seeding_ = status.ok() && state_.options.has_own_store;
        if (!is_seeding_) OnStarted(status);
      }));
}

absl::Status Node::AdoptRecords() {
  if (state_.kept->stamp() != meta::Stamp{}) {
    if (state_.record->is_new()) BeginWith(state_.kept->records(), *state_.record);
    return absl::OkStatus();
  }
  if (!state_.options.has_own_store) return absl::OkStatus();
  const auto earlier = EarlierRecords(*state_.record, state_.options.node);
  if (!earlier.ok()) return earlier.status();
  if (!state_.kept->Keep(*earlier)) return absl::ResourceExhaustedError(state_.kept->problem());
  return absl::OkStatus();
}

absl::Status Node::AdoptMemory() {
  const NodeSeams& seams = state_.seams;
  state_.memory = std::make_unique<SegmentPool>(
      SegmentPool::Seams{seams.executor, seams.pool, seams.segments, seams.log}, state_.options);
  state_.slots = std::make_unique<SlotStore>(
      SlotStore::Seams{seams.executor, *state_.memory, seams.processes, seams.log}, state_.options,
      state_.record->boot_id(), state_.record->incarnation(), state_.record->session(), [this] {
        capture_->RunRules();
        restore_->OnSlotChange();
      });
  state_.staging = std::make_unique<StagingArea>(
      StagingArea::Seams{seams.executor, *state_.memory, seams.processes, seams.log},
      state_.options);
  state_.tiles = std::make_unique<TilePool>(seams.executor, TileSharesOf(state_.options));
  state_.slots->set_staging([this] { return state_.staging->MemoryFor(StagingNeeded(state_)); });
  auto member = std::make_unique<Member>(Member::Seams{seams.executor, *seams.kv, *seams.transport,
                                                       seams.random, seams.log, seams.faults},
                                         *state_.record, *state_.kept,
                                         static_cast<Coordinator::Node&>(*this), state_.options);
  member_ = member.get();
  state_.coordinator = std::move(member);
  capture_ = std::make_unique<CaptureDesk>(state_);
  restore_ = std::make_unique<RestoreDesk>(state_);
  moved_ = std::make_unique<MovedRanks>(state_);
  watch_ = std::make_unique<ProtectionWatch>(state_);
  if (state_.record->committed_world() != 0) {
    state_.account.Begin(state_.record->committed().step, seams.executor.Now());
  }
  memory_ = std::make_unique<MemoryDesk>(state_, *member_);
  forecast_ = std::make_unique<RestoreForecast>(state_, *member_);
  admin_verifier_ = std::make_unique<SlotVerifier>(seams.executor, seams.pool, *state_.slots);
  if (absl::Status status = state_.slots->Adopt(); !status.ok()) return status;
  state_.staging->RemoveOld();
  state_.memory->RemoveOld(SegmentKind::kDecoded);  // nobody knows of it any more
  lives_before_ = std::make_unique<LivesBefore>(state_, [this] {
    if (protection_ != nullptr) protection_->OnRanksChange();
  });
  if (absl::Status status = JoinCluster(); !status.ok()) return status;
  ReportSealedSlots();
  scrubber_ = std::make_unique<Scrubber>(state_);
  return absl::OkStatus();
}

absl::Status Node::JoinCluster() {
  server_ = std::make_unique<SlabServer>(state_, member_->peers());
  state_.on_slot_change = [this] { server_->OnSlotChange(); };
  if (state_.options.parity_chunks == 0) {
    protection_ = std::make_unique<NoProtection>(state_.seams.executor);
  } else {
    auto protector =
        std::make_unique<Protector>(state_, member_->peers(), *server_, member_->records(),
                                    [this] { member_->ReportProtection(); });
    if (absl::Status status = protector->Adopt(); !status.ok()) return status;
    protector_ = protector.get();
    state_.slots->set_guards(
        [this](std::span<const SlotNeeds> slabs) { return protector_->MemoryFor(slabs); });
    protection_ = std::move(protector);
  }
  cluster_ = std::make_unique<ClusterDesk>(
      state_, *member_, [this](const AdminRequest& request, ClusterDesk::Reply reply) {
        AnswerOwn(request, std::move(reply));
      });
  export_ = std::make_unique<ExportDesk>(
      state_, *member_,
      [this](const ReadRequest& request, uint64_t bytes, auto done) {
        server_->Read(request, bytes, std::move(done));
      },
      drain_, export_policy_);
  restore_->Join({member_->peers(), member_->records(), *server_, protector_,
                  [this] { member_->ReportProtection(); }});
  member_->Start(*protection_);
  return absl::OkStatus();
}

void Node::OnStarted(absl::Status status) {
  started_ = status.ok();
  if (started_) {
    sessions_.Open();
    state_.seams.log.Info("node {} of job {}: session {}, timeline {}, {} slots adopted",
                          state_.options.node, state_.options.job, state_.record->session(),
                          state_.record->chain().newest(), state_.slots->All().size());
  }
  std::exchange(on_started_, nullptr)(std::move(status));
}

// A version that was sealed but not committed when the earlier process died may be whole by now.
void Node::ReportSealedSlots() {
  for (Slot* slot : state_.slots->All()) {
    if (slot->phase != SlotPhase::kSealed || slot->version <= state_.record->committed()) continue;
    if (!state_.record->chain().IsLive(slot->version)) continue;
    state_.coordinator->ReportSealed(slot->version, slot->owner);
  }
}

void Node::Leave(absl::AnyInvocable<void()> done) {
  if (state_.kept != nullptr) state_.kept->WriteAtOnce();
  if (member_ == nullptr) return done();
  member_->Leave(std::move(done));
}

// --- those who are connected ---

void Node::Accept(std::unique_ptr<Channel> channel, PeerIdentity peer) {
  sessions_.Accept(std::move(channel), peer);
}

void Node::OnSessionBegun() {
  if (protection_ != nullptr) protection_->OnRanksChange();
}

void Node::OnConnected(RankSession& session, Timeline follows) {
  state_.ranks_came = true;
  state_.coordinator->OnRanksChange();
  watch_->Wake();
  // After a restart of the daemon the trainer tells which decision it follows. One that has started
  // empty may have yet to read of it.
  const bool is_newest = follows == state_.record->chain().newest();
  if (is_newest || session.timeline == Timeline{}) session.timeline = follows;
  TakeHome(state_);
  session.Send(Welcome{state_.record->session(), state_.options.node,
                       state_.record->chain().newest(), state_.options.block_bytes,
                       state_.options.software_version, restore_->SealedSlotsOf(session.rank()),
                       static_cast<uint16_t>(kNewestFrameType)});
  watch_->Greet(session);
}

void Node::OnSessionEnding(RankSession& session) {
  capture_->OnSessionEnded(session);
  restore_->OnSessionEnded(session);
}

void Node::OnSessionEnded() {
  capture_->RunRules();
  if (protection_ != nullptr) protection_->OnRanksChange();
  state_.coordinator->OnRanksChange();
  EndIfOut();
}

absl::Status Node::OnTrainerFrame(RankSession& session, const Frame& frame) {
  const auto take = [&]<typename Message>(auto&& handle) -> absl::Status {
    absl::StatusOr<Message> message = FromFrame<Message>(frame);
    if (!message.ok()) return message.status();
    handle(*std::move(message));
    return absl::OkStatus();
  };
  CaptureDesk& capture = *capture_;
  RestoreDesk& restore = *restore_;
  switch (static_cast<FrameType>(frame.type)) {
    case FrameType::kRestoreRequest:
      return take.operator()<RestoreRequest>([&](auto m) { restore.OnRestoreRequest(session, m); });
    case FrameType::kExtrasRequest:
      return take.operator()<ExtrasRequest>([&](auto m) { restore.OnExtrasRequest(session, m); });
    case FrameType::kPlanRequest:
      return take.operator()<PlanRequest>(
          [&](auto m) { restore.OnPlanRequest(session, std::move(m)); });
    case FrameType::kStagedDone:
      return take.operator()<StagedDone>([&](auto m) { restore.OnStagedDone(session, m); });
    case FrameType::kRestoreDone:
      return take.operator()<RestoreDone>([&](auto m) { restore.OnRestoreDone(session, m); });
    case FrameType::kRegister:
      return take.operator()<Register>([&](auto m) { capture.OnRegister(session, std::move(m)); });
    case FrameType::kClaimed:
      return take.operator()<Claimed>([&](auto m) { capture.OnClaimed(session, m); });
    case FrameType::kProgress:
      return take.operator()<Progress>([&](auto m) { capture.OnProgress(session, m); });
    case FrameType::kCaptured:
      return take.operator()<Captured>([&](auto m) { capture.OnCaptured(session, std::move(m)); });
    case FrameType::kSkipped:
      return take.operator()<Skipped>([&](auto m) { capture.OnSkipped(session, m); });
    case FrameType::kGaveUp:
      return take.operator()<GaveUp>([&](auto m) { capture.OnGaveUp(session, m); });
    case FrameType::kEverCommittedRequest:
      return take.operator()<EverCommittedRequest>(
          [&](auto m) { OnEverCommittedRequest(session, m); });
    default:
      return absl::InvalidArgumentError(fmt::format(
          "a trainer does not send {} ({})", FrameTypeName(FrameType{frame.type}), frame.type));
  }
}

void Node::OnEverCommittedRequest(const RankSession& asker, EverCommittedRequest request) {
  state_.coordinator->AskEverCommitted(lifetime_.Bind(
      [this, rank = asker.rank(), life = asker.life(), request](const absl::StatusOr<bool>& ever) {
        RankSession* session = state_.SessionOf(rank);
        if (session == nullptr || session->life() != life) return;
        session->Send(EverCommitted{request.request, ever.status(), ever.value_or(false)});
      }));
}

void Node::OnPagesLost(const LostPages& lost) {
  if (!started_) return;
  for (Slot* slot : state_.slots->All()) {
    if (slot->segment->name() != lost.segment || slot->phase != SlotPhase::kSealed) continue;
    state_.slots->Quarantine(*slot, std::string(lost.status.message()));
  }
}

// --- the CLI ---

void Node::OnAdminRequest(const AdminRequest& request, Sessions::AdminAnswer answer) {
  if (request.verb == "cluster") return cluster_->Answer(request, std::move(answer));
  if (ExportDesk::Answers(request.verb)) return export_->Answer(request, std::move(answer));
  AnswerOwn(request, std::move(answer));
}

// About this node alone.
void Node::AnswerOwn(const AdminRequest& request, Sessions::AdminAnswer answer) {
  if (request.verb == "memory") return memory_->Answer(std::move(answer));
  if (request.verb == "plan") return forecast_->Answer(std::move(answer));
  if (request.verb == "plan-layout") {
    return forecast_->AnswerOfLayout(request.arguments, std::move(answer));
  }
  AnswerAdmin({state_, *admin_verifier_, member_, *protection_, export_.get()}, request,
              std::move(answer));
}

// --- the node's side of the coordinator ---

void Node::CloseTimeline(absl::AnyInvocable<void()> done) {
  state_.timeline_closed = true;
  capture_->Close(std::move(done));
}

void Node::ReopenTimeline() {
  state_.timeline_closed = false;
  capture_->RunRules();
}

void Node::Verify(Version version, absl::AnyInvocable<void(absl::Status)> done) {
  restore_->Verify(version, std::move(done));
}

std::vector<HeldSlab> Node::Inventory() { return restore_->Inventory(); }

std::vector<RottenSlab> Node::RottenSlabs() { return restore_->RottenSlabs(); }

void Node::OnDecision(const JobDecision& decision) {
  state_.timeline_closed = false;
  if (decision.kind != DecisionKind::kFailed) {
    const bool fresh = decision.kind == DecisionKind::kFresh;
    state_.account.Begin(fresh ? std::nullopt : std::optional(decision.version.step),
                         state_.seams.executor.Now());
  }
  if (decision.kind != DecisionKind::kFailed) {
    state_.decided = decision.timeline;
    // What was decided late, for an attempt that is over, does not say where the next one's are.
    state_.homes =
        HasRanksBeside(state_, decision.attempt) ? std::map<Rank, NodeSlot>() : decision.homes;
    TakeHome(state_);
  }
  // Before what a restore may want of slots.
  if (decision.kind == DecisionKind::kRestored) moved_->OnRestored(decision.asked.size());
  restore_->OnDecision(decision);
  if (decision.kind == DecisionKind::kFresh) moved_->OnFreshStart();
  capture_->RunRules();
  ProvideLater();
}

void Node::OnCommitted(Version version) {
  restore_->OnCommitted(version);
  capture_->OnCommitted(version);
  moved_->OnCommitted(version);
  capture_->RunRules();
  state_.account.Committed(version.step, state_.seams.executor.Now());
  watch_->Look();
  ProvideLater();
}

// Behind what goes now, in turns of its own.
void Node::ProvideLater() {
  state_.seams.executor.Post(lifetime_.Bind([this] { capture_->ProvideRefused(); }));
}

void Node::OnAbandoned(Version version, const std::string& reason) {
  if (version.timeline == state_.record->chain().newest()) {
    state_.account.GaveUp(version.step, reason);
  }
  capture_->OnAbandoned(version, reason);
  capture_->RunRules();
}

void Node::OnCaptureFrom(Version first) { capture_->OnCaptureFrom(first); }

void Node::OnPins(const PinRecord& pins) {
  state_.pins = pins;
  capture_->RunRules();
}

uint64_t Node::RanksServed() { return state_.RanksServed(); }

uint64_t Node::RanksTraining() { return smp::RanksTraining(state_); }

uint64_t Node::LivesRound() { return AttemptInForce(state_).LivesRound(); }

void Node::OnAttemptOver(uint64_t round) { state_.over_round = round; }

// What fits with no fewer parities either is no reason to have fewer.
bool Node::LacksMemory() {
  if (!capture_->LacksMemory()) return false;
  return protector_ == nullptr ||
         protector_->FitsWithOneParityLess([this] { return !capture_->LacksMemory(); });
}

void Node::OnObstacle(const std::string& what) { state_.job_obstacle = what; }

void Node::OnStanding(const Standing& standing) {
  state_.standing = standing;
  // It is a matter of turns; whoever asks for anything before would be told to try again.
  if (is_seeding_ && standing.problem.empty()) {
    is_seeding_ = false;
    OnStarted(absl::OkStatus());
  }
  watch_->Look();
  EndIfOut();
}

// What serves nobody in a slot that is another's may be of use elsewhere.
void Node::EndIfOut() {
  const bool serves_nobody = state_.sessions.empty() && state_.lives_before.empty();
  if (state_.standing.is_out && serves_nobody) End(state_.standing.refusal);
}

void Node::OnRefused(const absl::Status& why) { End(why); }

void Node::End(const absl::Status& why) {
  state_.seams.executor.Post(lifetime_.Bind([this, why] {
    if (on_ended_ != nullptr) on_ended_(why);
  }));
}

void Node::OnReplicasDisagree(const std::string& what) {
  capture_->OnReplicasDisagree(what);
  capture_->RunRules();
}

}  // namespace unreft::smp
