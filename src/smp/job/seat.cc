#include "smp/job/seat.h"

#include <absl/strings/str_join.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/format.h"
#include "base/text.h"
#include "smp/job/cluster_records.h"
#include "smp/job/recorded.h"

namespace unreft::smp {
namespace {

constexpr size_t kNamedMax = 8;

constexpr char kHasAnotherJob[] =
    "the meta store has another job of this name than that which this daemon is in: nothing is "
    "committed here, and what lies here stays until the daemon is started again, by a supervisor "
    "too, to take part in the other job. If that store is a mistake, put this job's in its place; "
    "or stop the daemons that have the other's records and remove its keys: they are written anew "
    "from what the nodes have kept";
constexpr char kIsOfAnotherJob[] =
    "what lies here is of another job of this name than that which the meta store has: it stays "
    "until that one takes this node in, and is given up then. If it is wanted, stop this daemon by "
    "'unreft down --keep-memory', and start it with the meta store of its job (--meta-endpoints)";

// The first few that are not present: of a thousand nodes nobody reads more.
std::string MissingNodes(const meta::JobState& job, uint64_t nodes) {
  std::vector<std::string> named;
  auto present = job.present.begin();
  for (uint64_t slot = 0; slot < nodes && named.size() < kNamedMax; ++slot) {
    if (present != job.present.end() && present->first == NodeSlot{slot}) {
      ++present;
    } else {
      named.push_back(fmt::format("node {}", slot));
    }
  }
  if (named.empty()) return "none";
  const uint64_t missing = nodes - std::min<uint64_t>(nodes, job.present.size());
  if (missing > named.size()) named.push_back(fmt::format("{} more", missing - named.size()));
  return absl::StrJoin(named, ", ");
}

// A spare takes the slot of a member that is lost; before the first view nobody is one.
std::string UnusedSpares(const meta::JobState& job) {
  if (job.spares.empty()) return "";
  std::vector<std::string> named;
  for (const auto& [place, spare] : job.spares) {
    if (named.size() == kNamedMax) break;
    named.push_back(CleanText(spare.value.presence().address(), kTextBytesMax));
  }
  if (job.spares.size() > named.size()) {
    named.push_back(fmt::format("{} more", job.spares.size() - named.size()));
  }
  return fmt::format(
      ". Waiting as spares: {}; a spare takes the slot of a node that is lost, and of none that "
      "never came: start one of them with --node instead",
      absl::StrJoin(named, ", "));
}

// A daemon that was started with another number where one of that slot had been.
bool IsOfAnother(const meta::JobState& job, NodeSlot slot, const std::string& address) {
  const auto is_there = [&](const PresenceRecord& presence) {
    return presence.address() == address && presence.slot() != slot.value;
  };
  return std::ranges::any_of(job.present, [&](const auto& at) { return is_there(at.second); }) ||
         std::ranges::any_of(job.waiting,
                             [&](const auto& at) { return is_there(at.second.value.presence()); });
}

}  // namespace

SeatOwner OwnerOfSeat(const meta::JobState& job, NodeSlot slot, const std::string& incarnation,
                      uint64_t newest_view) {
  const ViewMember* const member = FindMember(job.view.value, slot);
  if (member == nullptr) return SeatOwner::kNobody;
  if (member->incarnation() == incarnation) return SeatOwner::kOurs;
  if (member->lost()) return SeatOwner::kLost;
  if (newest_view >= job.view.value.number()) return SeatOwner::kNobody;
  return IsPresent(job, *member) ? SeatOwner::kPresent : SeatOwner::kAbsent;
}

Seat::Seat(meta::Kv& kv, Executor& executor, Log& log, const meta::JobStore& store,
           NodeRecord& record, const NodeOptions& options, std::string address, Callbacks callbacks)
    : executor_(executor),
      log_(log),
      store_(store),
      record_(record),
      options_(options),
      address_(std::move(address)),
      callbacks_(std::move(callbacks)),
      settings_(kv, executor, log, options, address_, [this] { callbacks_.on_presence(); }),
      presence_(
          kv, executor, log, store.PresenceKey(options.node), options.presence_ttl,
          // An earlier process of the same memory; the lock on the run directory says it is dead.
          [this](const std::string& value) {
            PresenceRecord other;
            return other.ParseFromString(value) &&
                   other.incarnation() == AsBytes(record_.incarnation());
          },
          [this] { callbacks_.on_presence(); }),
      waiting_(
          kv, executor, log, store.WaitingKey(PlaceOf(Presence())), options.presence_ttl,
          // The place is this daemon's alone.
          [](const std::string&) { return true; }, [this] { Wait(); }),
      leadership_(
          kv, executor, log, store.LeaderKey(), options.presence_ttl,
          [this](const std::string& value) {
            PresenceRecord other;
            return other.ParseFromString(value) && other.slot() == options_.node.value &&
                   other.incarnation() == AsBytes(record_.incarnation());
          },
          [this] { callbacks_.on_leadership(); }) {}

Seat::~Seat() { executor_.Cancel(probe_again_); }

PresenceRecord Seat::Presence() const {
  PresenceRecord record;
  record.set_slot(options_.node.value);
  record.set_incarnation(AsBytes(record_.incarnation()));
  record.set_session(record_.session().value);
  record.set_address(address_);
  record.set_failure_domain(options_.failure_domain);
  record.set_place(options_.place.value_or(options_.node.value));
  return record;
}

void Seat::Follow(const RanksHere& ranks, std::optional<KnownHere> known) {
  ranks_ = ranks;
  const bool was_aside = std::exchange(is_aside_, !known);
  const bool was_of_another_job = known_.is_of_another_job;
  known_ = known.value_or(KnownHere{});
  SayWhose(was_aside, was_of_another_job);
  if (is_aside_) owner_ = SeatOwner::kNobody;
  if (store_.ready() && !is_leaving_) is_aside_ ? HoldKeys() : FollowRecords();
  TellStanding();
}

void Seat::FollowRecords() {
  settings_.Follow(store_.state(), WasInAView() || known_.kept != meta::Stamp{});
  const SeatOwner owner =
      OwnerOfSeat(store_.state(), options_.node, AsBytes(record_.incarnation()), known_.view);
  if (owner == SeatOwner::kOurs) record_.SetView(store_.state().view.value.number());
  if (std::exchange(owner_, owner) != owner) SayWhere();
  HoldKeys();
  ConfirmKeys();
  LookForFirst();
}

void Seat::Leave(absl::AnyInvocable<void()> done) {
  is_leaving_ = true;
  executor_.Cancel(std::exchange(probe_again_, TimerId::kNone));
  PresenceRecord last = Presence();
  last.set_leaving(true);
  // Its successor is to find it gone: the leadership goes when that was said.
  presence_.Leave(last.SerializeAsString(),
                  lifetime_.Bind([this, done = std::move(done)]() mutable {
                    waiting_.Release();
                    leadership_.Release(std::move(done));
                  }));
}

// Of another memory, that shows itself in the slot.
const PresenceRecord* Seat::Other() const {
  const PresenceRecord* const present = store_.state().PresenceOf(options_.node);
  if (present == nullptr) return nullptr;
  const bool is_ours = present->incarnation() == AsBytes(record_.incarnation());
  return is_ours ? nullptr : present;
}

void Seat::HoldKeys() {
  if (!MayHoldKeys()) {
    presence_.Release();
    waiting_.Release();
    return leadership_.Release();
  }
  const bool is_free = owner_ == SeatOwner::kNobody || owner_ == SeatOwner::kLost;
  if (owner_ == SeatOwner::kOurs || (is_free && Other() == nullptr)) {
    if (!presence_.wanted()) presence_.Hold(Presence().SerializeAsString());
    // Not before: if the leader has given the slot back, the presence is on the lease of this key.
    if (presence_.held()) waiting_.Release();
  } else {
    presence_.Release();
    Wait();
  }
  // A leader is reached by its slot. Where nobody is present, somebody has to say who is lost.
  const bool campaigns = presence_.wanted() || store_.state().present.empty();
  if (!campaigns) return leadership_.Release();
  if (!leadership_.wanted()) leadership_.Hold(Presence().SerializeAsString());
}

void Seat::Wait() {
  if (presence_.wanted() || !MayHoldKeys()) return;
  WaitingRecord record;
  *record.mutable_presence() = Presence();
  // The leader hands the lease on with the presence: none yet, and the slot is not given back.
  if (waiting_.held()) record.set_lease(static_cast<int64_t>(waiting_.lease().value));
  // By its ranks a memory gets its slot back. What was never in a view has nothing to come back
  // with: the slot would cost the job the memory that has it now, for the ranks of whoever has
  // mistyped a number, before the attempt's own have come to ask. It says where they belong.
  if (WasInAView()) {
    record.set_ranks(ranks_.training + ranks_.asking);
    record.set_asking(ranks_.asking);
    record.set_attempt(ranks_.attempt.value);
    record.set_world(ranks_.world);
  }
  // Who waits does not report, and may be all that knows what the store has forgotten.
  if (!store_.state().IsSeeded()) {
    record.set_kept_epoch(known_.kept.epoch);
    record.set_kept_sequence(known_.kept.sequence);
  }
  waiting_.Hold(record.SerializeAsString());
}

// A store that went back may know our leases and not the keys.
void Seat::ConfirmKeys() {
  const meta::JobState& state = store_.state();
  const PresenceRecord own = Presence();
  const auto is_own = [&own](const PresenceRecord& record) {
    return record.session() == own.session() && record.incarnation() == own.incarnation();
  };
  const PresenceRecord* const present = state.PresenceOf(options_.node);
  if (present == nullptr || !is_own(*present)) presence_.Confirm();
  // What it said when the store was seeded says nothing of what it has kept.
  const auto is_said = [&](const WaitingRecord& record) {
    const meta::Stamp said{record.kept_epoch(), record.kept_sequence()};
    return is_own(record.presence()) && (state.IsSeeded() || said == known_.kept);
  };
  const auto waits = state.waiting.find(PlaceOf(own));
  if (!presence_.wanted() && (waits == state.waiting.end() || !is_said(waits->second.value))) {
    waiting_.Confirm();
  }
  if (!store_.IsLedBy(leadership_.holding())) leadership_.Confirm();
}

void Seat::SayWhose(bool was_aside, bool was_of_another_job) {
  if (is_aside_ && !was_aside) log_.Error("node {}: {}", options_.node, kHasAnotherJob);
  if (was_aside && !is_aside_) log_.Info("node {}: stands aside no longer", options_.node);
  if (known_.is_of_another_job && !was_of_another_job) {
    log_.Error("node {}: {}", options_.node, kIsOfAnotherJob);
  }
}

void Seat::SayWhere() {
  const uint64_t view = store_.state().view.value.number();
  switch (owner_) {
    case SeatOwner::kOurs:
      if (std::exchange(was_ours_, true)) {
        log_.Info("node {}: its slot is this memory's again, by view {}", options_.node, view);
      }
      return;
    case SeatOwner::kNobody:
    case SeatOwner::kLost:
      return;
    case SeatOwner::kAbsent:
    case SeatOwner::kPresent:
      was_ours_ |= WasInAView();
      if (WasInAView()) return log_.Error("node {}: {}", options_.node, WhoseItIs());
      log_.Warn("node {}: {}", options_.node, WhoseItIs());
  }
}

std::string Seat::WhoseItIs() const {
  const meta::JobState& job = store_.state();
  const ViewMember* const member = FindMember(job.view.value, options_.node);
  if (member == nullptr) return {};
  const std::string other = fmt::format("by view {} its slot has another memory, that of place {}",
                                        job.view.value.number(), PlaceOf(*member));
  if (WasInAView()) {
    return fmt::format(
        "{}; this daemon was away for too long and is out of the job: nothing that it holds "
        "counts, "
        "and its trainers train on unprotected. It comes back if the other is lost, or, while "
        "that serves no ranks, if those here train, or ask and the attempt lacks no others; else "
        "with the next attempt, whose ranks may ask there. Without ranks, stop it, or start it "
        "anew as a spare (--spare)",
        other);
  }
  const std::string ranks =
      ranks_.served == 0 ? ""
                         : fmt::format(
                               ". The ranks here ({}) count for nothing until then: start them "
                               "beside place {} in the next attempt, or stop the daemon there",
                               ranks_.served, PlaceOf(*member));
  return fmt::format(
      "{}; this one is empty and takes the slot if that is lost, which it is once its daemon is "
      "away for longer than {} ms{}",
      other, (options_.presence_ttl + options_.lost_grace) / std::chrono::milliseconds(1), ranks);
}

void Seat::TellStanding() {
  Standing standing = StandingNow();
  if (standing == standing_) return;
  standing_ = std::move(standing);
  callbacks_.on_standing(standing_);
}

Standing Seat::StandingNow() const {
  if (!settings_.refusal().ok()) {
    return {std::string(settings_.refusal().message()), true, false, settings_.refusal()};
  }
  const bool is_out =
      WasInAView() && (owner_ == SeatOwner::kAbsent || owner_ == SeatOwner::kPresent);
  const bool is_starting =
      store_.status().ok() && !is_out && !is_aside_ && owner_ != SeatOwner::kOurs;
  return {Problem(), is_out, is_starting, absl::OkStatus()};
}

std::string Seat::Problem() const {
  if (const absl::Status status = store_.status(); !status.ok()) {
    return fmt::format("the meta store cannot be used, and nothing is committed meanwhile: {}",
                       status.message());
  }
  if (is_aside_) return kHasAnotherJob;
  if (!store_.ready()) return "the meta store was not read yet";
  if (known_.is_of_another_job) return kIsOfAnotherJob;
  const meta::JobState& job = store_.state();
  if (!job.view.exists()) {
    const std::string least = options_.NodesMin() == options_.nodes
                                  ? ""
                                  : fmt::format(", which may begin with {},", options_.NodesMin());
    return fmt::format("the job of {} nodes{} has no view yet; not present: {}{}", options_.nodes,
                       least, MissingNodes(job, options_.nodes), UnusedSpares(job));
  }
  switch (owner_) {
    case SeatOwner::kOurs:
      return {};
    case SeatOwner::kNobody:
    case SeatOwner::kLost:
      return fmt::format("view {} does not name this memory yet", job.view.value.number());
    case SeatOwner::kAbsent:
    case SeatOwner::kPresent:
      return WhoseItIs();
  }
  return {};
}

// What was never in a view has nothing that anybody could miss. Where a spare has the slot, this
// may be its host again, which waits.
bool Seat::IsSecond() const {
  const PresenceRecord* const other = Other();
  return !WasInAView() && other != nullptr && PlaceOf(*other) == PlaceOf(Presence());
}

// That the store has its presence does not say that it lives: the lease of one that was killed is
// not over yet, and begins anew in a store that went back.
void Seat::LookForFirst() {
  if (!IsSecond() || !MayHoldKeys())
    return executor_.Cancel(std::exchange(probe_again_, TimerId::kNone));
  if (is_refused_ || is_probing_ || probe_again_ != TimerId::kNone) return;
  const std::string address = Other()->address();
  if (address == address_) return;  // which this one has now
  is_probing_ = true;
  callbacks_.probe(address, lifetime_.Bind([this, address](bool answers) {
    is_probing_ = false;
    if (!answers || !IsSecond() || Other()->address() != address ||
        IsOfAnother(store_.state(), options_.node, address)) {
      probe_again_ = executor_.After(options_.presence_ttl, [this] {
        probe_again_ = TimerId::kNone;
        LookForFirst();
      });
      return;
    }
    is_refused_ = true;
    callbacks_.on_refused(absl::FailedPreconditionError(fmt::format(
        "node {} of job {} is served by the daemon at {} already: stop that one, give this one the "
        "number of another node (--node), or let it wait for a lost one (--spare)",
        options_.node, options_.job, address)));
  }));
}

}  // namespace unreft::smp
