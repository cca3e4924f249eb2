#include "tests/sim/cluster/group_checker.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/crc32c.h"
#include "base/format.h"
#include "base/guard_header.h"
#include "base/slot_header.h"
#include "smp/protect/group_view.h"
#include "smp/protect/guard_store.h"
#include "tests/fakes/reference_code.h"

namespace unreft::sim {
namespace {

using Bytes = std::span<const std::byte>;

struct Slab {
  std::unique_ptr<Segment> segment;
  std::optional<SlotView> view;
  SlotSeal seal;
};

struct Guard {
  std::unique_ptr<Segment> segment;
  std::optional<GuardView> view;
  GuardRecord record;
};

struct Member {
  NodeSlot slot;
  std::map<Rank, Slab> slabs;
  Guard guard;
};

absl::Status Bad(std::string what) { return absl::DataLossError(std::move(what)); }

std::string AsString(Bytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// The segments of that kind which are there as a whole.
std::vector<std::unique_ptr<Segment>> SegmentsOf(Machine& machine, const std::string& kind) {
  std::vector<std::unique_ptr<Segment>> segments;
  FakeSegmentStore store(*machine.memory);
  for (const std::string& name : machine.memory->Names()) {
    if (!name.starts_with(machine.prefix() + kind)) continue;
    auto segment = store.Open(name, Access::kReadOnly);
    if (!segment.ok()) continue;
    // Pages that are not reserved yet cannot be touched.
    if (*machine.memory->ReservedBytes(name) < (*segment)->bytes().size()) continue;
    segments.push_back(*std::move(segment));
  }
  return segments;
}

std::map<Rank, Slab> SlabsOf(Machine& machine, Version version) {
  std::map<Rank, Slab> slabs;
  for (std::unique_ptr<Segment>& segment : SegmentsOf(machine, "slot")) {
    absl::StatusOr<SlotView> view = SlotView::Check(segment->bytes());
    if (!view.ok() || view->state().state != SlotState::kSealed) continue;
    const absl::StatusOr<SlotGrant> grant = view->CheckedGrant();
    const absl::StatusOr<SlotSeal> seal = view->CheckedSeal();
    if (!grant.ok() || !seal.ok()) continue;
    if (Version{Timeline{seal->timeline}, Step{seal->step}} != version) continue;
    slabs[Rank{grant->rank}] = {std::move(segment), *view, *seal};
  }
  return slabs;
}

absl::StatusOr<Guard> GuardOf(Machine& machine, Version version) {
  for (std::unique_ptr<Segment>& segment : SegmentsOf(machine, "guard")) {
    absl::StatusOr<GuardView> view = GuardView::Check(segment->bytes());
    if (!view.ok() || view->state() != GuardState::kComplete) continue;
    const absl::StatusOr<GuardGrant> grant = view->CheckedGrant();
    if (!grant.ok()) continue;
    if (Version{Timeline{grant->timeline}, Step{grant->step}} != version) continue;
    if (absl::Status status = smp::VerifyGuard(*view); !status.ok()) return status;
    absl::StatusOr<GuardRecord> record = smp::ReadGuardRecord(*view);
    if (!record.ok()) return record.status();
    return Guard{std::move(segment), *view, *std::move(record)};
  }
  return Bad("there is no complete guard");
}

// What went in of a member: of which memory, if it had slabs at all.
std::string EncodedOf(const MemberSlab& member) {
  return member.slabs().empty() ? "" : member.SerializeAsString();
}

std::string CodingOf(const GuardRecord& record) {
  std::string coding = record.group().SerializeAsString();
  for (const MemberSlab& member : record.members()) coding += EncodedOf(member) + "/";
  return coding;
}

class Checker {
 public:
  Checker(const Group& group, Version version)
      : group_(group),
        version_(version),
        shape_{group.k(), static_cast<uint32_t>(group.slots_size()) - group.k()},
        code_(shape_) {}

  absl::Status Read(const MachinesBySlot& machines) {
    for (const uint64_t slot : group_.slots()) {
      Machine& machine = *machines.at(NodeSlot{slot});
      Member& member = members_.emplace_back();
      member.slot = NodeSlot{slot};
      member.slabs = SlabsOf(machine, version_);
      absl::StatusOr<Guard> guard = GuardOf(machine, version_);
      if (!guard.ok()) {
        return Bad(fmt::format("version {} on node {}: {}", version_, member.slot,
                               guard.status().message()));
      }
      member.guard = *std::move(guard);
    }
    return absl::OkStatus();
  }

  // All guards are of the same slabs, which are those that are sealed.
  absl::Status CheckRecords() {
    const GuardRecord& first = members_[0].guard.record;
    if (first.members_size() != static_cast<int>(shape_.n())) return Bad("members of the record");
    for (uint32_t i = 0; i < shape_.n(); ++i) {
      const GuardRecord& record = members_[i].guard.record;
      if (record.member() != i ||
          record.group().SerializeAsString() != group_.SerializeAsString()) {
        return Bad(fmt::format("the guard of node {} is of another group", members_[i].slot));
      }
      for (uint32_t j = 0; j < shape_.n(); ++j) {
        if (EncodedOf(record.members(static_cast<int>(j))) !=
            EncodedOf(first.members(static_cast<int>(j)))) {
          return Bad(
              fmt::format("version {}: the guards of nodes {} and {} are of different slabs "
                          "of node {}",
                          version_, members_[0].slot, members_[i].slot, members_[j].slot));
        }
      }
      if (absl::Status status = CheckSlabs(members_[i], first.members(static_cast<int>(i)));
          !status.ok()) {
        return status;
      }
    }
    slabs_ = *smp::GroupSlabs::Make(shape_, kBlockBytes,
                                    {first.members().begin(), first.members().end()});
    return absl::OkStatus();
  }

  absl::Status CheckParities() {
    for (uint32_t stripe = 0; stripe < shape_.n(); ++stripe) {
      for (uint64_t position = 0; position < slabs_->layout().positions(); ++position) {
        const std::vector<Bytes> data = DataOf(stripe, position);
        std::vector<std::vector<std::byte>> needed(shape_.m, std::vector<std::byte>(kBlockBytes));
        std::vector<std::span<std::byte>> into(needed.begin(), needed.end());
        code_.Encode(data, into);
        for (uint32_t parity = 0; parity < shape_.m; ++parity) {
          Member& holder = members_[slabs_->layout().MemberOf(stripe, shape_.k + parity)];
          if (!std::ranges::equal(needed[parity], holder.guard.view->block(parity, position))) {
            return Bad(
                fmt::format("version {}: parity {} of stripe {} at position {} on node {} is "
                            "not that of the slabs",
                            version_, parity, stripe, position, holder.slot));
          }
          if (absl::Status status = CheckInputs(holder, parity, position, data); !status.ok()) {
            return status;
          }
        }
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckReplicas() {
    for (uint32_t i = 0; i < shape_.n(); ++i) {
      for (uint32_t back = 1; back <= shape_.m; ++back) {
        const Member& of = members_[(i + shape_.n() - back) % shape_.n()];
        if (absl::Status status = CheckDescription(members_[i], of); !status.ok()) return status;
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckLosses() {
    for (uint32_t lost = 1; lost < uint32_t{1} << shape_.n(); ++lost) {
      if (std::popcount(lost) > static_cast<int>(std::min(shape_.m, 2U))) continue;
      for (uint32_t stripe = 0; stripe < shape_.n(); ++stripe) {
        for (uint64_t position = 0; position < slabs_->layout().positions(); ++position) {
          if (absl::Status status = Decode(lost, stripe, position); !status.ok()) return status;
        }
      }
    }
    return absl::OkStatus();
  }

 private:
  static constexpr uint32_t kBlockBytes = 64;

  absl::Status CheckSlabs(const Member& member, const MemberSlab& encoded) const {
    bool same = encoded.slabs_size() == static_cast<int>(member.slabs.size());
    for (const RankSlab& slab : encoded.slabs()) {
      const auto it = member.slabs.find(Rank{slab.rank()});
      // One that was rebuilt lies in another slot; the parities are compared with its bytes.
      same &= it != member.slabs.end() && it->second.seal.data_bytes == slab.data_bytes();
    }
    if (same) return absl::OkStatus();
    return Bad(fmt::format("version {}: node {} has {} slabs, other ones than the {} encoded",
                           version_, member.slot, member.slabs.size(), encoded.slabs_size()));
  }

  std::vector<Bytes> DataOf(uint32_t stripe, uint64_t position) {
    std::vector<Bytes> data;
    for (uint32_t source = 0; source < shape_.k; ++source) {
      const std::optional<uint64_t> block = slabs_->layout().BlockAt(stripe, source, position);
      if (!block) {
        data.emplace_back();
        continue;
      }
      const uint32_t member = slabs_->layout().MemberOf(stripe, source);
      const smp::RankBlock at = slabs_->BlockOf(member, *block);
      data.push_back(members_[member].slabs.at(at.rank).view->block(at.block));
    }
    return data;
  }

  absl::Status CheckInputs(Member& holder, uint32_t parity, uint64_t position,
                           const std::vector<Bytes>& data) const {
    const auto crcs = holder.guard.view->input_crcs(parity, position, shape_.k);
    for (uint32_t source = 0; source < shape_.k; ++source) {
      if (data[source].empty() || Crc32c(data[source]) == crcs[source]) continue;
      return Bad(
          fmt::format("version {} on node {}: input {} of parity {} at position {} has "
                      "another CRC",
                      version_, holder.slot, source, parity, position));
    }
    return absl::OkStatus();
  }

  absl::Status CheckDescription(const Member& keeper, const Member& of) const {
    const auto fail = [&](const char* what) {
      return Bad(fmt::format("version {}: node {} has no right copy of {} of node {}", version_,
                             keeper.slot, what, of.slot));
    };
    for (const MemberDescription& description : keeper.guard.record.descriptions()) {
      if (description.slot() != of.slot.value) continue;
      if (description.slabs_size() != static_cast<int>(of.slabs.size())) return fail("all slabs");
      for (const SlabDescription& slab : description.slabs()) {
        const auto it = of.slabs.find(Rank{slab.rank()});
        if (it == of.slabs.end()) return fail("the slabs");
        SlotView view = *it->second.view;
        const SlotSeal& seal = it->second.seal;
        const uint64_t blocks = BlockCount(seal.data_bytes, kBlockBytes);
        if (slab.manifest() != AsString(view.manifest().first(seal.manifest_bytes))) {
          return fail("the manifest");
        }
        if (slab.crc_table() != AsString(view.crc_table().first(blocks * sizeof(uint32_t)))) {
          return fail("the CRC table");
        }
        if (slab.extras() != AsString(view.extras().first(seal.extras_bytes))) {
          return fail("the extras");
        }
      }
      return absl::OkStatus();
    }
    return fail("anything");
  }

  // The stripe's data chunks of the lost members, from k others.
  absl::Status Decode(uint32_t lost, uint32_t stripe, uint64_t position) {
    const std::vector<Bytes> data = DataOf(stripe, position);
    std::vector<ec::SourceChunk> sources;
    std::vector<uint32_t> wanted;
    for (uint32_t chunk = 0; chunk < shape_.n(); ++chunk) {
      const uint32_t member = slabs_->layout().MemberOf(stripe, chunk);
      if ((lost >> member & 1) != 0) {
        if (chunk < shape_.k) wanted.push_back(chunk);
      } else if (sources.size() < shape_.k) {
        const Bytes bytes = chunk < shape_.k
                                ? data[chunk]
                                : members_[member].guard.view->block(chunk - shape_.k, position);
        sources.push_back({chunk, bytes});
      }
    }
    std::vector<std::vector<std::byte>> decoded(wanted.size(), std::vector<std::byte>(kBlockBytes));
    std::vector<ec::TargetChunk> targets;
    for (size_t i = 0; i < wanted.size(); ++i) targets.push_back({wanted[i], decoded[i]});
    if (absl::Status status = code_.Reconstruct(sources, targets); !status.ok()) return status;
    for (size_t i = 0; i < wanted.size(); ++i) {
      const Bytes needed = data[wanted[i]];
      const bool right = needed.empty()
                             ? std::ranges::count(decoded[i], std::byte{0}) == kBlockBytes
                             : std::ranges::equal(decoded[i], needed);
      if (right) continue;
      return Bad(
          fmt::format("version {}: chunk {} of stripe {} at position {} decodes to other "
                      "bytes after the loss of members {:b}",
                      version_, wanted[i], stripe, position, lost));
    }
    return absl::OkStatus();
  }

  const Group& group_;
  const Version version_;
  const ec::CodeShape shape_;
  const ec::ReferenceCode code_;
  std::vector<Member> members_;
  std::optional<smp::GroupSlabs> slabs_;
};

// What a member has of a version.
struct Left {
  bool counts = false;
  std::set<uint64_t> slabs;  // by rank
  std::optional<GuardRecord> guard;
};

Left LeftOf(Machine& machine, Version version, const std::string& incarnation) {
  Left left;
  const auto is_own = [&](const RandomId& id) {
    return std::string(id.begin(), id.end()) == incarnation;
  };
  for (const auto& [rank, slab] : SlabsOf(machine, version)) {
    if (!is_own(slab.view->geometry().incarnation)) continue;
    if (!machine.observer.Holds(version, rank)) continue;
    left.slabs.insert(rank.value);
  }
  absl::StatusOr<Guard> guard = GuardOf(machine, version);
  if (guard.ok() && is_own(guard->view->geometry().incarnation)) {
    left.guard = std::move(guard->record);
  }
  return left;
}

// Of which slabs the guard is, whoever's it is.
bool HasWhatWasEncoded(const Left& left) {
  const MemberSlab& encoded = left.guard->members(static_cast<int>(left.guard->member()));
  return std::ranges::all_of(
      encoded.slabs(), [&](const RankSlab& slab) { return left.slabs.contains(slab.rank()); });
}

void AddDecodable(const Group& group, const std::map<NodeSlot, Left>& left, std::set<Rank>& had) {
  std::map<std::string, std::vector<const Left*>> codings;
  for (const uint64_t slot : group.slots()) {
    const auto it = left.find(NodeSlot{slot});
    if (it == left.end() || !it->second.guard) continue;
    codings[CodingOf(*it->second.guard)].push_back(&it->second);
  }
  for (const auto& [coding, members] : codings) {
    const auto is_rival = [&](const auto& other) {
      return other.first != coding && other.second.size() >= members.size();
    };
    if (std::ranges::any_of(codings, is_rival)) continue;
    const auto is_whole = [](const Left* of) { return of->counts && HasWhatWasEncoded(*of); };
    if (std::ranges::count_if(members, is_whole) < group.k()) continue;
    for (const MemberSlab& member : members.front()->guard->members()) {
      for (const RankSlab& slab : member.slabs()) had.insert(Rank{slab.rank()});
    }
  }
}

}  // namespace

bool CanBeHad(const MachinesBySlot& machines, const ViewRecord& view,
              const google::protobuf::RepeatedPtrField<Group>& groups,
              const std::set<NodeSlot>& gone, Version version, uint64_t world) {
  std::set<Rank> had;
  std::map<NodeSlot, Left> left;
  for (const ViewMember& member : view.members()) {
    if (member.lost()) continue;
    const NodeSlot slot{member.slot()};
    Left& of = left[slot] = LeftOf(*machines.at(slot), version, member.incarnation());
    of.counts = !gone.contains(slot);
    if (!of.counts) continue;
    for (const uint64_t rank : of.slabs) had.insert(Rank{rank});
  }
  for (const Group& group : groups) AddDecodable(group, left, had);
  for (uint64_t rank = 0; rank < world; ++rank) {
    if (!had.contains(Rank{rank})) return false;
  }
  return world > 0;
}

absl::Status CheckGroup(const MachinesBySlot& machines, const Group& group, Version version,
                        bool deep) {
  // What is left of a job may be one node, whose slabs nobody guards (docs/protocol.md, rule 19).
  if (group.slots_size() == 1) return absl::OkStatus();
  Checker checker(group, version);
  absl::Status status = checker.Read(machines);
  if (status.ok()) status = checker.CheckRecords();
  if (status.ok()) status = checker.CheckParities();
  if (status.ok()) status = checker.CheckReplicas();
  if (status.ok() && deep) status = checker.CheckLosses();
  return status;
}

absl::Status CheckRest(const MachinesBySlot& machines, const Group& group, Version version,
                       const std::set<NodeSlot>& gone) {
  std::map<std::string, NodeSlot> codings;
  for (const uint64_t number : group.slots()) {
    const NodeSlot slot{number};
    if (gone.contains(slot)) continue;
    const absl::StatusOr<Guard> guard = GuardOf(*machines.at(slot), version);
    if (!guard.ok()) {
      return Bad(fmt::format("version {} on node {}: {}", version, slot, guard.status().message()));
    }
    codings.emplace(CodingOf(guard->record), slot);
  }
  if (codings.size() <= 1) return absl::OkStatus();
  return Bad(fmt::format("version {}: the guards of nodes {} and {} are of different slabs",
                         version, codings.begin()->second, std::next(codings.begin())->second));
}

std::vector<GuardLook> LookAtGuards(Machine& machine) {
  std::vector<GuardLook> looks;
  for (const std::unique_ptr<Segment>& segment : SegmentsOf(machine, "guard")) {
    absl::StatusOr<GuardView> view = GuardView::Check(segment->bytes());
    if (!view.ok()) continue;
    const GuardGrant& grant = view->header().grant;
    looks.push_back({fmt::format("{}", view->geometry().guard_id), view->state(),
                     Version{Timeline{grant.timeline}, Step{grant.step}}});
  }
  return looks;
}

}  // namespace unreft::sim
