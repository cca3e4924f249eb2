#include "smp/restore/restore_catalog.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/format.h"
#include "smp/job/cluster_records.h"
#include "smp/job/recorded.h"
#include "smp/protect/group_view.h"
#include "smp/protect/slab_source.h"

namespace unreft::smp {
namespace {

void CopyInto(std::span<std::byte> region, const std::string& bytes) {
  std::memcpy(region.data(), bytes.data(), bytes.size());
}

}  // namespace

RestoreCatalog::RestoreCatalog(NodeState& state, Peers& peers, const meta::JobRecords& job,
                               const JobDecision& decision,
                               std::optional<recovery::WantedBoxes> wanted,
                               absl::AnyInvocable<void()> on_ready)
    : state_(state),
      peers_(peers),
      job_(job),
      version_(decision.version),
      on_ready_(std::move(on_ready)) {
  missing_ = decision.holders.size();
  size_t slabs = 0;
  for (const recovery::SlabHolder& holder : decision.holders) slabs += holder.ranks.size();
  tables_ = std::make_shared<recovery::RestoreTables>(slabs, std::move(wanted));
  for (const recovery::SlabHolder& holder : decision.holders) Ask(holder, 0);
}

const CatalogSlab* RestoreCatalog::Find(Rank rank) const {
  const auto it = slabs_.find(rank);
  return it == slabs_.end() ? nullptr : &it->second;
}

uint64_t RestoreCatalog::DescriptionBytesOf(const MemberSlab& member) const {
  uint64_t bytes = 0;
  for (const RankSlab& slab : member.slabs()) {
    const CatalogSlab* found = Find(Rank{slab.rank()});
    if (found == nullptr) continue;
    bytes += DescriptionBytes(state_.options.block_bytes, SlotNeedsOf(*found, state_.options));
  }
  return bytes;
}

const std::shared_ptr<const layout::SlotManifest>& CatalogSlab::manifest() const {
  if (manifest_ == nullptr) {
    absl::StatusOr<layout::SlotManifest> decoded = layout::DecodeManifest(description->manifest());
    UNREFT_CHECK(decoded.ok(), "it was read before: {}", decoded.status().ToString());
    manifest_ = std::make_shared<const layout::SlotManifest>(*std::move(decoded));
  }
  return manifest_;
}

SlotNeeds SlotNeedsOf(const CatalogSlab& slab, const NodeOptions& options) {
  return {.data_bytes = slab.head.data_bytes,
          .extras_bytes = std::max<uint64_t>(options.extras_bytes_min, 2 * slab.head.extras_bytes),
          // Another release may write more into it than this one reads.
          .manifest_bytes = std::max<uint64_t>(layout::ManifestBytesMax(*slab.manifest()),
                                               slab.description->manifest().size())};
}

SlotSeal FillDescription(const CatalogSlab& slab, SlotView& view) {
  const SlabDescription& description = *slab.description;
  CopyInto(view.manifest(), description.manifest());
  CopyInto(view.crc_table(), description.crc_table());
  CopyInto(view.extras(), description.extras());
  SlotSeal seal;
  seal.layout_digest = slab.head.layout_digest;
  seal.data_bytes = slab.head.data_bytes;
  seal.extras_bytes = slab.head.extras_bytes;
  seal.manifest_bytes = description.manifest().size();
  seal.extras_crc = description.extras_crc();
  seal.manifest_crc = description.manifest_crc();
  seal.crc_table_crc = description.crc_table_crc();
  return seal;
}

std::optional<GuardRecord> RestoreCatalog::DescribeGroup(NodeSlot slot) const {
  const CommitRecord& commit = job_.commit.value;
  const auto& groups = VersionOf(commit) == version_ ? commit.groups() : job_.view.value.groups();
  const std::optional<GroupView> group = FindGroup(groups, slot);
  if (!group) return std::nullopt;
  GuardRecord record;
  *record.mutable_group() = group->ToMessage();
  record.set_member(group->self);
  bool is_idle = true;
  for (const NodeSlot of : group->slots) {
    MemberSlab& member = *record.add_members();
    const ViewMember* const now = FindMember(job_.view.value, of);
    if (now != nullptr) member.set_incarnation(now->incarnation());
    for (const auto& [rank, known] : slabs_) {
      if (known.home != of) continue;
      is_idle = false;
      RankSlab& slab = *member.add_slabs();
      slab.set_rank(rank.value);
      slab.set_generation(known.description->generation());
      slab.set_data_bytes(known.head.data_bytes);
    }
  }
  if (is_idle) return std::nullopt;
  for (const uint32_t index : group->Predecessors()) {
    MemberDescription& description = *record.add_descriptions();
    description.set_slot(group->slots[index].value);
    for (const auto& [rank, known] : slabs_) {
      if (known.home == group->slots[index]) *description.add_slabs() = *known.description;
    }
  }
  return record;
}

std::vector<NodeSlot> RestoreCatalog::Knowing(const recovery::SlabHolder& holder) const {
  std::vector<NodeSlot> knowing;
  if (!holder.lost) knowing.push_back(holder.slot);
  // Under any group map the descriptions are with members of the slot's group.
  for (const auto* groups : {&job_.commit.value.groups(), &job_.view.value.groups()}) {
    for (const Group& group : *groups) {
      const auto& slots = group.slots();
      const auto self = std::find(slots.begin(), slots.end(), holder.slot.value);
      if (self == slots.end()) continue;
      for (int i = 1; i < slots.size(); ++i) {
        const auto index = static_cast<int>(self - slots.begin());
        const NodeSlot next{slots[(index + i) % slots.size()]};
        if (std::find(knowing.begin(), knowing.end(), next) == knowing.end()) {
          knowing.push_back(next);
        }
      }
    }
  }
  return knowing;
}

void RestoreCatalog::Ask(recovery::SlabHolder holder, size_t attempt) {
  const std::vector<NodeSlot> knowing = Knowing(holder);
  if (knowing.empty()) return;  // lost, and in no group: the decision would not have taken it
  MetaRequest request;
  SetVersion(version_, request);
  request.set_slot(holder.slot.value);
  for (const Rank rank : holder.ranks) request.add_ranks(rank.value);
  const NodeSlot asked = knowing[attempt % knowing.size()];
  peers_.AskInPages<MetaReply>(
      asked, "meta", request, state_.options.call_timeout,
      lifetime_.Bind([this, holder, attempt, asked,
                      asked_all = (attempt + 1) % knowing.size() ==
                                  0](absl::StatusOr<MetaReply> reply) mutable {
        absl::Status status = reply.ok() ? Take(holder, asked, *reply) : reply.status();
        if (status.ok()) {
          if (--missing_ == 0) on_ready_();
          return;
        }
        if (asked_all) {
          state_.seams.log.Warn("version {}: nobody has told of node {} yet; node {} said: {}",
                                version_, holder.slot, asked, status.message());
        }
        state_.seams.executor.After(
            asked_all ? state_.options.read_retry : Duration{},
            lifetime_.Bind([this, holder = std::move(holder), attempt]() mutable {
              Ask(std::move(holder), attempt + 1);
            }));
      }));
}

absl::Status RestoreCatalog::Take(const recovery::SlabHolder& holder, NodeSlot asked,
                                  const MetaReply& reply) {
  // All or nothing: who lacks one of them is not asked for the others.
  std::vector<CatalogSlab> taken;
  views_.resize(std::max(views_.size(), holder.ranks.size()));
  for (const Rank rank : holder.ranks) {
    const auto& slabs = reply.slabs();
    const auto found = std::find_if(slabs.begin(), slabs.end(), [&](const SlabDescription& slab) {
      return slab.rank() == rank.value;
    });
    if (found == slabs.end()) {
      return absl::NotFoundError(fmt::format("the slab of rank {} is not described", rank));
    }
    absl::StatusOr<CatalogSlab> slab = SlabOf(*found, views_[taken.size()]);
    if (!slab.ok()) return slab.status();
    slab->home = holder.slot;
    slab->lost = holder.lost;
    slab->described_by = asked;
    taken.push_back(*std::move(slab));
  }
  std::vector<recovery::RestoreTables::Slab> added;
  for (size_t i = 0; i < taken.size(); ++i) {
    const Rank rank = taken[i].head.rank;
    const auto [known, is_new] = slabs_.emplace(rank, std::move(taken[i]));
    if (!is_new) continue;
    added.push_back(
        {static_cast<uint32_t>(rank.value), known->second.manifest_bytes(), &views_[i]});
  }
  tables_->AddSlabs(added);
  return absl::OkStatus();
}

// All but where it is.
absl::StatusOr<CatalogSlab> RestoreCatalog::SlabOf(const SlabDescription& description,
                                                   layout::ManifestView& view) const {
  if (absl::Status status = CheckSlabDescription(description); !status.ok()) return status;
  if (absl::Status status = view.Read(description.manifest()); !status.ok()) return status;
  const layout::SlotManifest& head = view.head();
  if (head.version != version_ || head.rank.value != description.rank()) {
    return absl::DataLossError(fmt::format("rank {} of version {} was described as rank {} of {}",
                                           description.rank(), version_, head.rank, head.version));
  }
  const uint64_t blocks = BlockCount(head.data_bytes, head.block_bytes);
  if (description.crc_table().size() != blocks * sizeof(uint32_t)) {
    return absl::DataLossError(fmt::format("rank {}: {} bytes of CRCs for {} blocks",
                                           description.rank(), description.crc_table().size(),
                                           blocks));
  }
  if (description.extras().size() != head.extras_bytes) {
    return absl::DataLossError(fmt::format("rank {}: {} bytes of extras, its manifest says {}",
                                           description.rank(), description.extras().size(),
                                           head.extras_bytes));
  }
  CatalogSlab slab;
  slab.crcs.resize(blocks);
  std::memcpy(slab.crcs.data(), description.crc_table().data(), description.crc_table().size());
  slab.head = head;
  slab.head.replica_digests = {};
  slab.description = std::make_shared<const SlabDescription>(description);
  return slab;
}

}  // namespace unreft::smp
