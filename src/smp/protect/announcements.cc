#include "smp/protect/announcements.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/format.h"
#include "smp/job/cluster_records.h"
#include "smp/job/recorded.h"

namespace unreft::smp {

Announcements::Announcements(NodeState& state, Peers& peers, const meta::JobRecords& job,
                             absl::AnyInvocable<void()> run_rules)
    : state_(state), peers_(peers), job_(job), run_rules_(std::move(run_rules)) {}

std::vector<Version> Announcements::Followed() const {
  std::vector<Version> versions;
  for (const auto& [version, announced] : followed_) versions.push_back(version);
  return versions;
}

absl::Status Announcements::Check(NodeSlot from, const AnnounceRequest& request) const {
  const ViewMember* const member = FindMember(job_.view.value, from);
  if (member == nullptr || member->incarnation() == request.incarnation()) return absl::OkStatus();
  // One of both has an old view; as of a store that went back it may have the greater number.
  return absl::AbortedError(
      fmt::format("node {} announces slabs of a memory that view {} of node {} does not name", from,
                  job_.view.value.number(), peers_.self()));
}

void Announcements::Take(NodeSlot from, AnnounceRequest request) {
  AnnounceRequest& said = followed_.at(VersionOf(request)).said[from];
  // One that was long on its way takes nothing back that was told since.
  const bool is_late =
      said.incarnation() == request.incarnation() && said.slabs_size() > request.slabs_size();
  if (!is_late) said = std::move(request);
}

void Announcements::OnView() {
  // Who has its slot now may have told of another memory, which the others have in mind then.
  const ViewMember* const member = FindMember(job_.view.value, peers_.self());
  const std::string own = AsBytes(state_.record->incarnation());
  if (member == nullptr || member->incarnation() == own) return;
  for (auto& [version, announced] : followed_) announced.told.clear();
}

// This node's slabs of the version, once each of its ranks has a slot of it. A node without ranks
// has an empty slab; it learns of the version from the others.
std::optional<AnnounceRequest> Announcements::OwnSlabs(Version version, bool asked) const {
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
  request.set_incarnation(AsBytes(state_.record->incarnation()));
  request.set_block_bytes(state_.options.block_bytes);
  uint64_t description_bytes = 0;
  for (const auto& [rank, slot] : slots) {
    RankSlab& slab = *request.add_slabs();
    slab.set_rank(rank.value);
    slab.set_generation(slot->generation.value);
    slab.set_data_bytes(slot->phase == SlotPhase::kSealed ? slot->manifest->data_bytes
                                                          : slot->registration->plan.data_bytes());
    description_bytes += DescriptionBytes(slot->view->geometry());
  }
  request.set_description_bytes_max(description_bytes);
  return request;
}

void Announcements::Tell(Version version, const GroupView& group) {
  Announced& announced = followed_.at(version);
  std::optional<AnnounceRequest> own = OwnSlabs(version, /*asked=*/!announced.said.empty());
  const auto known = announced.said.find(peers_.self());
  // A daemon that has just started may hear of a rank only after it was asked.
  const bool is_news =
      own && (known == announced.said.end() || own->slabs_size() > known->second.slabs_size());
  if (is_news) {
    announced.said[peers_.self()] = *std::move(own);
    announced.told.clear();
  } else if (known == announced.said.end()) {
    return;
  }
  for (const NodeSlot member : group.slots) {
    if (member == peers_.self() || announced.telling.contains(member)) continue;
    const PresenceRecord* const presence = peers_.PresenceOf(member);
    if (presence == nullptr) continue;
    const auto told = announced.told.find(member);
    // A daemon that has started anew has forgotten what it was told.
    if (told != announced.told.end() && told->second == LifeOf(*presence)) continue;
    TellMember(version, announced, member);
  }
}

void Announcements::TellMember(Version version, Announced& announced, NodeSlot member) {
  announced.telling.insert(member);
  const Life life = LifeOf(*peers_.PresenceOf(member));
  const AnnounceRequest& own = announced.said.at(peers_.self());
  peers_.Call(member, "announce", own.SerializeAsString(), state_.options.call_timeout,
              lifetime_.Bind([this, version, member, life,
                              slabs = own.slabs_size()](absl::StatusOr<std::string> reply) {
                const auto it = followed_.find(version);
                if (it == followed_.end()) return;
                if (reply.ok()) {
                  it->second.telling.erase(member);
                  const auto said = it->second.said.find(peers_.self());
                  const bool is_newest =
                      said != it->second.said.end() && said->second.slabs_size() == slabs;
                  if (!is_newest) return run_rules_();
                  it->second.told[member] = life;
                  return;
                }
                state_.seams.executor.After(state_.options.read_retry,
                                            lifetime_.Bind([this, version, member] {
                                              const auto again = followed_.find(version);
                                              if (again == followed_.end()) return;
                                              again->second.telling.erase(member);
                                              run_rules_();
                                            }));
              }));
}

const AnnounceRequest* Announcements::SaidBy(Version version, NodeSlot slot) const {
  const std::map<NodeSlot, AnnounceRequest>& said = followed_.at(version).said;
  const auto found = said.find(slot);
  if (found == said.end()) return nullptr;
  // Others may have told, too: of groups that were formed anew, or memories that were replaced.
  const bool is_named = Names(job_.view.value, slot, found->second.incarnation());
  return is_named ? &found->second : nullptr;
}

// It is another memory than was encoded, or has ranks that were not heard of then.
bool Announcements::HasMore(Version version, NodeSlot slot, const MemberSlab& encoded) const {
  const AnnounceRequest* said = SaidBy(version, slot);
  if (said == nullptr || said->slabs().empty()) return false;
  const bool is_another =
      !encoded.incarnation().empty() && encoded.incarnation() != said->incarnation();
  return is_another || encoded.slabs_size() < said->slabs_size();
}

bool Announcements::HasSlabsThere(Version version, NodeSlot slot) const {
  const AnnounceRequest* said = SaidBy(version, slot);
  if (said == nullptr || said->slabs().empty()) return false;
  const ViewMember* const member = FindMember(job_.view.value, slot);
  return member != nullptr && !member->lost();
}

bool Announcements::HaveAllSaid(Version version, const GroupView& group) const {
  return std::ranges::all_of(group.slots,
                             [&](NodeSlot slot) { return SaidBy(version, slot) != nullptr; });
}

absl::StatusOr<GuardShare> Announcements::ShareOf(Version version, const GroupView& group) const {
  std::vector<MemberSlab> members;
  std::vector<uint64_t> description_bytes;
  for (const NodeSlot slot : group.slots) {
    const AnnounceRequest& said = followed_.at(version).said.at(slot);
    if (said.block_bytes() != state_.options.block_bytes) {
      return absl::InvalidArgumentError(fmt::format("node {} has blocks of {} bytes, node {} of {}",
                                                    slot, said.block_bytes(), peers_.self(),
                                                    state_.options.block_bytes));
    }
    MemberSlab& member = members.emplace_back();
    *member.mutable_slabs() = said.slabs();
    member.set_incarnation(said.incarnation());
    description_bytes.push_back(said.description_bytes_max());
  }
  absl::StatusOr<std::shared_ptr<const CodedVersion>> coded = CodedVersion::Make(
      version, group, state_.options.block_bytes, std::move(members), state_.codes);
  if (!coded.ok()) return coded.status();
  return GuardShare(*std::move(coded), description_bytes);
}

}  // namespace unreft::smp
