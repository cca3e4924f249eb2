#include "smp/protect/protector.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/format.h"
#include "ec/isal_code.h"
#include "smp/job/cluster_records.h"

namespace unreft::smp {
namespace {

constexpr size_t kVersionsKept = 16;

}  // namespace

Protector::Protector(NodeState& state, Peers& peers, SlabServer& server, const meta::JobState& job,
                     absl::AnyInvocable<void()> on_change)
    : state_(state),
      peers_(peers),
      server_(server),
      job_(job),
      on_change_(std::move(on_change)),
      guards_(state.seams.executor, state.seams.pool, state.seams.segments, state.seams.log,
              state.options, state.record->boot_id(), state.record->incarnation(),
              [this] { RunRules(); }),
      shortage_(state.seams.executor, state.options.memory_retry, [this] { ProvideAgain(); }) {
  guards_.set_others([&state] { return state.slots->use() + state.slots->staging().now; });
  Serve();
  server_.set_guarded(this);
}

Protector::~Protector() { server_.set_guarded(nullptr); }

GuardMemory Protector::MemoryFor(std::span<const SlotNeeds> slabs) const {
  const std::optional<GroupView> group = FindGroup(job_.view.value.groups(), peers_.self());
  const ec::CodeShape shape =
      group ? group->shape
            : ec::CodeShape{state_.options.data_chunks, state_.options.parity_chunks};
  return guards_.MemoryFor(GuardNeedsFor(shape, state_.options.block_bytes, slabs));
}

absl::Status Protector::Adopt() { return guards_.Adopt(); }

// --- what happens on this node ---

bool Protector::IsOfInterest(Version version) const {
  return version.timeline >= state_.record->chain().newest() &&
         version > std::max(state_.record->committed(), passed_over_) && !IsGivenUp(version);
}

bool Protector::IsGivenUp(Version version) const {
  return smp::IsGivenUp(job_.abandoned.value, version);
}

Protector::UnderWay& Protector::Of(Version version) {
  // Versions that nobody ever gave up must not fill the memory.
  while (versions_.size() >= kVersionsKept && !versions_.contains(version)) {
    passed_over_ = std::max(passed_over_, versions_.begin()->first);
    Forget(versions_.begin()->first);
  }
  return versions_[version];
}

void Protector::OnClaimed(Version version) {
  if (!IsOfInterest(version)) return;
  Of(version);
  RunRules();
}

void Protector::OnSealed(Version version) {
  if (!IsOfInterest(version)) return;
  Of(version);
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
  std::vector<Version> over;
  for (const auto& [candidate, under_way] : versions_) {
    if (candidate <= version) over.push_back(candidate);
  }
  for (const Version candidate : over) Forget(candidate);
  RunRules();
}

// What fills a guard ends first; the rest of it follows with OnGuarded.
void Protector::Forget(Version version) {
  const auto it = versions_.find(version);
  if (it == versions_.end()) return;
  UnderWay& under_way = it->second;
  if (under_way.guarding != nullptr && !under_way.complete) {
    under_way.guarding->Cancel();
    cancelled_.push_back(std::move(under_way.guarding));
  }
  versions_.erase(it);
}

void Protector::RunRules() {
  const recovery::TimelineChain& chain = state_.record->chain();
  for (Guard* guard : guards_.All()) {
    if (guard->phase != GuardPhase::kComplete || guard->dropped) continue;
    const bool is_dead = !chain.IsLive(guard->version) && guard->version.timeline < chain.newest();
    if (is_dead || IsGivenUp(guard->version)) guards_.Free(*guard);
  }
  std::vector<Version> dead;
  for (auto& [version, under_way] : versions_) {
    if (under_way.remaking) {
      // Its sources keep it until something else is committed, or decided: that may be older.
      if (version != state_.record->committed()) {
        dead.push_back(version);
      } else {
        StartRemaking(version, under_way);
      }
      continue;
    }
    // A node without ranks hears of a version that is given up by the record alone.
    if (version.timeline < chain.newest() || IsGivenUp(version)) dead.push_back(version);
  }
  for (const Version version : dead) Forget(version);
  const std::optional<GroupView> group = FindGroup(job_.view.value.groups(), peers_.self());
  if (!group) return;
  // Who has its slot now may have told of another memory, which the others have in mind then.
  const std::string own = AsBytes(state_.record->incarnation());
  const bool is_replaced =
      std::ranges::any_of(job_.view.value.members(), [&](const unreft::Member& member) {
        return NodeSlot{member.slot()} == peers_.self() && member.incarnation() != own;
      });
  for (auto& [version, under_way] : versions_) {
    if (under_way.remaking) continue;
    if (is_replaced) under_way.told.clear();
    if (HasReturned(under_way)) BeginAgain(version, under_way);
    if (under_way.guarding != nullptr) PassOver(*under_way.guarding);
    Announce(version, under_way, *group);
    // Others may have told, too: of groups that were formed anew, or memories that were replaced.
    const bool all_told =
        std::ranges::all_of(group->slots, [&, &said = under_way.said](NodeSlot slot) {
          const auto found = said.find(slot);
          return found != said.end() && IsNamed(slot, found->second.incarnation());
        });
    if (under_way.guarding == nullptr && all_told) StartGuarding(version, under_way, *group);
  }
}

bool Protector::IsNamed(NodeSlot slot, const std::string& incarnation) const {
  return std::ranges::any_of(job_.view.value.members(), [&](const unreft::Member& member) {
    return member.slot() == slot.value && member.incarnation() == incarnation;
  });
}

// A memory that was replaced for a while has its slot again, and slabs of the version, which is
// being encoded without them.
bool Protector::HasReturned(const UnderWay& under_way) const {
  if (under_way.guarding == nullptr) return false;
  const Guarding& guarding = *under_way.guarding;
  for (size_t i = 0; i < guarding.group().slots.size(); ++i) {
    const NodeSlot slot = guarding.group().slots[i];
    const auto said = under_way.said.find(slot);
    if (said == under_way.said.end() || said->second.slabs().empty()) continue;
    if (!IsNamed(slot, said->second.incarnation())) continue;
    const bool is_another =
        guarding.slabs().members()[i].incarnation() != said->second.incarnation();
    if (is_another || (!under_way.complete && guarding.DoesWithout(slot))) return true;
  }
  return false;
}

void Protector::BeginAgain(Version version, UnderWay& under_way) {
  Guard* const complete = under_way.complete ? guards_.Complete(version) : nullptr;
  if (!under_way.complete) under_way.guarding->Cancel();
  cancelled_.push_back(std::move(under_way.guarding));
  if (complete != nullptr) guards_.Free(*complete);
  under_way.complete = false;
  under_way.provided = false;
}

// Members whose memory is gone, or is another one than was encoded, hand nothing on and take
// nothing.
void Protector::PassOver(Guarding& guarding) {
  const std::vector<NodeSlot>& slots = guarding.group().slots;
  for (const unreft::Member& member : job_.view.value.members()) {
    const NodeSlot slot{member.slot()};
    const auto found = std::find(slots.begin(), slots.end(), slot);
    if (found == slots.end() || slot == peers_.self()) continue;
    const MemberSlab& slab = guarding.slabs().members()[found - slots.begin()];
    const bool is_another =
        !slab.incarnation().empty() && slab.incarnation() != member.incarnation();
    if (member.lost() || is_another) guarding.DoWithout(slot);
  }
}

// --- telling the group ---

// This node's slabs of the version, once each of its ranks has a slot of it. A node without ranks
// has an empty slab; it learns of the version from the others.
std::optional<AnnounceRequest> Protector::OwnSlabs(Version version, bool asked) const {
  std::map<Rank, const Slot*> slots;
  for (Slot* slot : state_.slots->All()) {
    if (slot->version != version) continue;
    const bool capturing = slot->phase == SlotPhase::kCapturing && slot->registration != nullptr;
    if (capturing || slot->phase == SlotPhase::kSealed) slots[slot->owner] = slot;
  }
  // A daemon that has started anew has ranks that it has not heard of yet; and one that has not
  // told its ranks the decision yet has ranks that will take part.
  if (!state_.lives_before.empty()) return std::nullopt;
  for (const auto& [rank, session] : state_.sessions) {
    const bool takes_part = !session->superseded && session->timeline <= version.timeline;
    if (takes_part && !slots.contains(rank)) return std::nullopt;
  }
  if (slots.empty() && !asked) return std::nullopt;
  AnnounceRequest request;
  SetVersion(version, request);
  const RandomId& incarnation = state_.record->incarnation();
  request.set_incarnation(std::string(incarnation.begin(), incarnation.end()));
  request.set_block_bytes(state_.options.block_bytes);
  uint64_t replica_bytes = 0;
  for (const auto& [rank, slot] : slots) {
    RankSlab& slab = *request.add_slabs();
    slab.set_rank(rank.value);
    slab.set_generation(slot->generation.value);
    slab.set_data_bytes(slot->phase == SlotPhase::kSealed ? slot->manifest->data_bytes
                                                          : slot->registration->plan.data_bytes());
    replica_bytes += ReplicaBytes(slot->view->geometry());
  }
  request.set_replica_bytes_max(replica_bytes);
  return request;
}

void Protector::Announce(Version version, UnderWay& under_way, const GroupView& group) {
  if (!under_way.announced) {
    const bool asked = !under_way.said.empty();
    std::optional<AnnounceRequest> own = OwnSlabs(version, asked);
    if (!own) return;
    under_way.announced = true;
    under_way.said[peers_.self()] = *std::move(own);
  }
  for (const NodeSlot member : group.slots) {
    if (member == peers_.self() || under_way.telling.contains(member)) continue;
    const auto present = job_.present.find(member);
    if (present == job_.present.end()) continue;
    const auto told = under_way.told.find(member);
    // A daemon that has started anew has forgotten what it was told.
    if (told != under_way.told.end() && told->second == LifeOf(present->second)) continue;
    Tell(version, under_way, member);
  }
}

void Protector::Tell(Version version, UnderWay& under_way, NodeSlot member) {
  under_way.telling.insert(member);
  const Life life = LifeOf(job_.present.at(member));
  peers_.Call(member, "announce", under_way.said.at(peers_.self()).SerializeAsString(),
              state_.options.call_timeout,
              lifetime_.Bind([this, version, member, life](absl::StatusOr<std::string> reply) {
                const auto it = versions_.find(version);
                if (it == versions_.end()) return;
                if (reply.ok()) {
                  it->second.telling.erase(member);
                  it->second.told[member] = life;
                  return;
                }
                state_.seams.executor.After(state_.options.read_retry,
                                            lifetime_.Bind([this, version, member] {
                                              const auto again = versions_.find(version);
                                              if (again == versions_.end()) return;
                                              again->second.telling.erase(member);
                                              RunRules();
                                            }));
              }));
}

// --- filling a guard ---

void Protector::StartGuarding(Version version, UnderWay& under_way, const GroupView& group) {
  std::vector<MemberSlab> members;
  std::vector<uint64_t> replica_bytes;
  for (const NodeSlot slot : group.slots) {
    const AnnounceRequest& said = under_way.said.at(slot);
    if (said.block_bytes() != state_.options.block_bytes) {
      return Refuse(fmt::format("node {} has blocks of {} bytes, node {} of {}", slot,
                                said.block_bytes(), peers_.self(), state_.options.block_bytes));
    }
    MemberSlab& member = members.emplace_back();
    *member.mutable_slabs() = said.slabs();
    member.set_incarnation(said.incarnation());
    replica_bytes.push_back(said.replica_bytes_max());
  }
  absl::StatusOr<GroupSlabs> slabs =
      GroupSlabs::Make(group.shape, state_.options.block_bytes, std::move(members));
  if (!slabs.ok()) return Refuse(std::string(slabs.status().message()));
  uint64_t needed = 0;
  for (const uint32_t member : group.Predecessors()) needed += replica_bytes[member];
  // Complete from an earlier life of this daemon.
  const bool is_complete = guards_.Complete(version) != nullptr;
  StartWith(version, under_way, group, *slabs, needed,
            is_complete ? Guarding::Mode::kHandOn : Guarding::Mode::kWithGroup);
}

void Protector::Refuse(const std::string& reason) {
  if (reason == last_refusal_) return;
  last_refusal_ = reason;
  state_.seams.log.Error("no protection: {}", reason);
}

// Guards of older versions may be given away. Before it is known what is kept, none are.
Version Protector::KeepFrom() {
  if (!state_.pins && state_.options.pins > 0) return Version{};
  std::set<Version> kept;
  if (state_.pins) {
    for (const Pin& pin : state_.pins->pins()) kept.insert(VersionOf(pin));
  }
  guards_.Keep(std::move(kept));
  return state_.record->committed();
}

void Protector::StartWith(Version version, UnderWay& under_way, const GroupView& group,
                          const GroupSlabs& slabs, uint64_t replica_bytes, Guarding::Mode mode) {
  uint64_t slabs_count = 0;
  for (const MemberSlab& member : slabs.members()) slabs_count += member.slabs_size();
  GuardNeeds needs;
  needs.chunks = group.shape.m;
  needs.sources = group.shape.k;
  needs.positions = slabs.layout().positions();
  needs.record_bytes = GuardRecordBytes(slabs_count, replica_bytes);
  under_way.complete = mode == Guarding::Mode::kHandOn;
  if (!under_way.complete && !std::exchange(under_way.provided, true)) {
    if (absl::Status status = guards_.Provide(needs, KeepFrom()); !status.ok()) {
      Refuse(std::string(status.message()));
    } else if (const uint64_t bytes = guards_.use().bytes; bytes != guard_bytes_told_) {
      guard_bytes_told_ = bytes;
      state_.seams.log.Info("memory budget: {} guards take {} bytes of shared memory",
                            guards_.All().size(), bytes);
    }
  }
  Guard* guard =
      under_way.complete ? guards_.Complete(version) : guards_.Take(version, needs, KeepFrom());
  if (std::exchange(under_way.lacks_guard, guard == nullptr) != (guard == nullptr)) on_change_();
  if (guard == nullptr) return shortage_.Arm();
  std::shared_ptr<const ec::ErasureCode> code = CodeFor(group.shape);
  under_way.guarding =
      std::make_unique<Guarding>(Guarding::Seams{state_.seams.executor, state_.seams.pool, peers_,
                                                 state_.seams.log, state_.tiles, std::move(code)},
                                 state_.options, version, group, slabs, *guard, mode,
                                 [this, version, id = guard->id, generation = guard->generation](
                                     absl::StatusOr<std::shared_ptr<const GuardRecord>> result) {
                                   OnGuarded(version, id, generation, std::move(result));
                                 });
  under_way.guarding->Start();
}

// Versions that have no guard: nobody tells when there is memory that was lacking.
void Protector::ProvideAgain() {
  for (auto& [version, under_way] : versions_) {
    if (under_way.guarding == nullptr) under_way.provided = false;
  }
  RunRules();
}

void Protector::OnGuarded(Version version, uint64_t id, Generation generation,
                          absl::StatusOr<std::shared_ptr<const GuardRecord>> result) {
  Guard* guard = guards_.Find(id, generation);
  const auto it = versions_.find(version);
  const bool wanted = it != versions_.end() && it->second.guarding != nullptr &&
                      &it->second.guarding->guard() == guard && guard != nullptr;
  if (result.ok() && wanted) {
    it->second.complete = true;
    guards_.SetComplete(*guard, *std::move(result));
    if (it->second.remaking) {
      state_.seams.log.Info("version {}: its protection is restored on node {}", version,
                            peers_.self());
      versions_.erase(it);
    }
  } else {
    if (!result.ok() && !absl::IsCancelled(result.status())) {
      Refuse(fmt::format("version {}: {}", version, result.status().message()));
    }
    if (guard != nullptr) guards_.Free(*guard);
    if (wanted) {
      cancelled_.push_back(std::move(it->second.guarding));
      versions_.erase(it);
    }
    // Not inside its own call.
    state_.seams.executor.Post(lifetime_.Bind([this, id, generation] {
      std::erase_if(cancelled_, [](const auto& guarding) { return guarding->ended(); });
    }));
  }
  on_change_();
  RunRules();
}

std::shared_ptr<const ec::ErasureCode> Protector::CodeFor(ec::CodeShape shape) {
  for (const auto& code : codes_) {
    if (code->shape() == shape) return code;
  }
  // Groups of a view have been checked (meta::CheckRecord), and so has what lies in a guard.
  absl::StatusOr<std::unique_ptr<ec::IsalCode>> code = ec::IsalCode::Make(shape);
  UNREFT_CHECK(code.ok(), "{}", code.status().message());
  return codes_.emplace_back(*std::move(code));
}

}  // namespace unreft::smp
