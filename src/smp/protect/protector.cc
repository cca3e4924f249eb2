#include "smp/protect/protector.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/format.h"
#include "smp/job/cluster_records.h"
#include "smp/job/recorded.h"

namespace unreft::smp {
namespace {

constexpr size_t kVersionsFollowed = 16;

}  // namespace

Protector::Protector(NodeState& state, Peers& peers, SlabServer& server,
                     const meta::JobRecords& job, absl::AnyInvocable<void()> on_change)
    : state_(state),
      peers_(peers),
      server_(server),
      job_(job),
      on_change_(std::move(on_change)),
      guards_(*state.memory, state.seams.log, state.options, state.record->boot_id(),
              state.record->incarnation(), [this] { RunRules(); }),
      complete_(state.seams.executor, state.seams.pool, guards_, peers.self(),
                state.options.block_bytes),
      maker_(
          state, peers, guards_, [this] { on_change_(); }, [this] { RunRules(); }),
      announcements_(state, peers, job, [this] { RunRules(); }),
      remaking_(state, peers.self(), maker_) {
  Serve();
  server_.set_guarded(this);
}

Protector::~Protector() { server_.set_guarded(nullptr); }

GuardMemory Protector::MemoryFor(std::span<const SlotNeeds> slabs) {
  const std::optional<GroupView> group = OwnGroup();
  const ec::CodeShape shape =
      group ? group->shape
            : ec::CodeShape{state_.options.data_chunks, state_.options.parity_chunks};
  if (shape.m <= parities_less_) return {};
  return maker_.MemoryFor(GuardNeedsFor({shape.k + parities_less_, shape.m - parities_less_},
                                        state_.options.block_bytes, slabs));
}

// Of the newest timeline; none where this node is left out.
std::optional<GroupView> Protector::OwnGroup() const {
  return FindGroup(job_.view.value.groups(), peers_.self());
}

bool Protector::FitsWithOneParityLess(absl::FunctionRef<bool()> fits) {
  parities_less_ = 1;
  const bool does = fits();
  parities_less_ = 0;
  return does;
}

bool Protector::LacksMemory() const {
  const std::optional<GroupView> group = OwnGroup();
  return group && maker_.LacksMemory(group->shape);
}

absl::Status Protector::Adopt() { return guards_.Adopt(); }

// --- what happens on this node ---

bool Protector::IsOfInterest(Version version) const {
  return !state_.record->chain().IsOver(version.timeline) &&
         version > std::max(state_.record->committed(), passed_over_) && !IsAbandoned(version);
}

bool Protector::IsAbandoned(Version version) const {
  return smp::IsAbandoned(job_.abandoned.value, version);
}

void Protector::Follow(Version version) {
  if (announcements_.Follows(version)) return;
  // Versions that nobody ever gave up must not fill the memory.
  std::vector<Version> followed = announcements_.Followed();
  if (followed.size() >= kVersionsFollowed) {
    passed_over_ = std::max(passed_over_, followed.front());
    Forget(followed.front());
  }
  announcements_.Follow(version);
}

void Protector::OnClaimed(Version version) {
  if (!IsOfInterest(version)) return;
  Follow(version);
  RunRules();
}

void Protector::OnSealed(Version version) {
  if (!IsOfInterest(version)) return;
  Follow(version);
  server_.OnSlotChange();
  RunRules();
}

void Protector::Drop(Version version) {
  server_.OnSlotChange();
  Forget(version);
  if (Guard* guard = guards_.Complete(version)) {
    guards_.Free(*guard);
    on_change_();
  }
}

void Protector::OnCommitted(Version version) {
  for (const Version followed : announcements_.Followed()) {
    if (followed <= version) Forget(followed);
  }
  remaking_.ForgetUpTo(version);
  RunRules();
}

void Protector::Forget(Version version) {
  announcements_.Forget(version);
  remaking_.Forget(version);
  maker_.Forget(version);
}

void Protector::Remake(Version version, const GuardRecord& of_another,
                       const std::vector<uint64_t>& description_bytes) {
  if (guards_.Complete(version) != nullptr || announcements_.Follows(version)) return;
  remaking_.Begin(version, of_another, description_bytes);
}

void Protector::FreeDeadGuards() {
  const recovery::TimelineChain& chain = state_.record->chain();
  for (Guard* guard : guards_.All()) {
    if (guard->phase != GuardPhase::kComplete || guard->dropped) continue;
    const bool is_dead = !chain.IsLive(guard->version) && chain.IsOver(guard->version.timeline);
    if (is_dead || IsAbandoned(guard->version)) guards_.Free(*guard);
  }
}

void Protector::RunRules() {
  FreeDeadGuards();
  remaking_.RunRules();
  for (const Version version : announcements_.Followed()) {
    // A node without ranks hears of a version that is given up by the record alone.
    const bool is_over = state_.record->chain().IsOver(version.timeline) || IsAbandoned(version);
    if (is_over || maker_.HasFailed(version)) Forget(version);
  }
  // A node that has missed a decision may read the view that went with it, and of a later round
  // which failed.
  const bool is_behind = job_.timeline.exists() &&
                         NewestTimeline(job_.timeline.value) != state_.record->chain().newest();
  const std::optional<GroupView> group = OwnGroup();
  if (is_behind || !group) return;
  if (group->shape.m == 0) return maker_.RemoveUnused();
  announcements_.OnView();
  for (const Version version : announcements_.Followed()) {
    // One of a timeline that this node is yet to hear of is of groups that it does not know.
    if (version.timeline != state_.record->chain().newest()) continue;
    Guarding* guarding = maker_.Find(version);
    if (guarding != nullptr && LacksSlabs(version, *guarding)) {
      maker_.BeginAgain(version);
      guarding = nullptr;
    }
    if (guarding != nullptr) PassOver(*guarding);
    announcements_.Tell(version, *group);
    if (guarding == nullptr && announcements_.HaveAllSaid(version, *group)) {
      MakeGuard(version, *group);
    }
  }
}

void Protector::MakeGuard(Version version, const GroupView& group) {
  const absl::StatusOr<GuardShare> share = announcements_.ShareOf(version, group);
  if (!share.ok()) return maker_.Refuse(std::string(share.status().message()));
  if (Guard* const outdated = OutdatedGuard(version)) guards_.Free(*outdated);
  maker_.MakeWithGroup(*share);
}

// What is followed is encoded in the groups of the view, which may have fewer parities than they
// had when its timeline was opened.
bool Protector::IsOfOwnGroup(const Group& group) const {
  return OwnGroup()->ToMessage().SerializeAsString() == group.SerializeAsString();
}

// Complete, but of another shape of the group, or a member that has its slot now has told of slabs
// that are not in it. What was
// complete before a decision began counts in it until that is made.
Guard* Protector::OutdatedGuard(Version version) {
  Guard* const complete = guards_.Complete(version);
  if (complete == nullptr || job_.timeline.value.closing()) return nullptr;
  const GuardRecord& record = *complete->record;
  if (!IsOfOwnGroup(record.group())) return complete;
  for (int i = 0; i < std::min(record.group().slots_size(), record.members_size()); ++i) {
    const NodeSlot slot{record.group().slots(i)};
    if (announcements_.HasMore(version, slot, record.members(i))) return complete;
  }
  return nullptr;
}

// What is encoded, or handed on, lacks slabs; or it is encoded without a member that is there
// again.
bool Protector::LacksSlabs(Version version, const Guarding& guarding) {
  const CodedVersion& coded = guarding.coded();
  if (!maker_.IsComplete(version) && !IsOfOwnGroup(coded.group.ToMessage())) return true;
  for (uint32_t i = 0; i < coded.group.members(); ++i) {
    const NodeSlot slot = coded.group.slots[i];
    if (announcements_.HasMore(version, slot, coded.slabs.members()[i])) return true;
    const bool is_without = !maker_.IsComplete(version) && guarding.DoesWithout(slot);
    if (is_without && announcements_.HasSlabsThere(version, slot)) return true;
  }
  return maker_.IsComplete(version) && OutdatedGuard(version) != nullptr;
}

// Members whose memory is gone, or is another one than was encoded, hand nothing on and take
// nothing.
void Protector::PassOver(Guarding& guarding) {
  const CodedVersion& coded = guarding.coded();
  for (const ViewMember& member : job_.view.value.members()) {
    const NodeSlot slot{member.slot()};
    const std::optional<uint32_t> index = coded.group.MemberIn(slot);
    if (!index || slot == peers_.self()) continue;
    const MemberSlab& slab = coded.slabs.members()[*index];
    const bool is_another =
        !slab.incarnation().empty() && slab.incarnation() != member.incarnation();
    if (member.lost() || is_another) guarding.DoWithout(slot);
  }
}

// --- serving ---

void Protector::Serve() {
  peers_.Serve(
      "announce", [this](NodeSlot from, const std::string& body, Transport::CallDone done) {
        AnnounceRequest request;
        if (!request.ParseFromString(body)) {
          return done(absl::InvalidArgumentError(fmt::format(
              "an announcement of node {} of {} bytes does not parse", from, body.size())));
        }
        if (absl::Status status = announcements_.Check(from, request); !status.ok()) {
          return done(std::move(status));
        }
        const Version version = VersionOf(request);
        // What is over needs no answer but this: the sender stops telling it.
        if (IsOfInterest(version)) {
          Follow(version);
          announcements_.Take(from, std::move(request));
          RunRules();
        }
        done("");
      });
  peers_.Answer<MetaRequest, GuardRecord>("record",
                                          [this](NodeSlot, const MetaRequest& request, auto done) {
                                            done(complete_.Describe(VersionOf(request)));
                                          });
}

void Protector::ReadParity(const ReadRequest& request, uint64_t bytes, SlabSource::ReadDone done) {
  switch (request.kind()) {
    case ReadRequest::STORED_PARITY:
      return complete_.Read(request, bytes, std::move(done));
    case ReadRequest::FRESH_PARITY:
      if (Guarding* guarding = maker_.Find(VersionOf(request))) {
        return guarding->OnRead(request, bytes, std::move(done));
      }
      return done(absl::NotFoundError(fmt::format("node {} encodes nothing of version {} now",
                                                  peers_.self(), VersionOf(request))));
    default:
      return done(absl::InvalidArgumentError(
          fmt::format("a read of kind {} is not known", static_cast<int>(request.kind()))));
  }
}

}  // namespace unreft::smp
