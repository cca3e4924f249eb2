#include "smp/protect/coded_version.h"

#include <utility>

#include "smp/job/cluster_records.h"

namespace unreft::smp {

absl::StatusOr<std::shared_ptr<const CodedVersion>> CodedVersion::Make(
    Version version, GroupView group, uint32_t block_bytes, std::vector<MemberSlab> members,
    ec::CodeCache& codes) {
  absl::StatusOr<GroupSlabs> slabs = GroupSlabs::Make(group.shape, block_bytes, std::move(members));
  if (!slabs.ok()) return slabs.status();
  absl::StatusOr<std::shared_ptr<const ec::ErasureCode>> code = codes.Of(group.shape);
  if (!code.ok()) return code.status();
  const auto& of_members = slabs->members();
  const uint64_t coding = CodingOf(group.ToMessage(), {of_members.begin(), of_members.end()});
  return std::make_shared<const CodedVersion>(
      CodedVersion{version, std::move(group), *std::move(slabs), *std::move(code), coding});
}

absl::StatusOr<std::shared_ptr<const CodedVersion>> CodedVersion::FromRecord(
    Version version, const GuardRecord& record, NodeSlot self, uint32_t block_bytes,
    ec::CodeCache& codes) {
  google::protobuf::RepeatedPtrField<Group> groups;
  *groups.Add() = record.group();
  std::optional<GroupView> group = FindGroup(groups, self);
  if (!group || record.members_size() != record.group().slots_size()) {
    return absl::DataLossError("the group's record is of other members");
  }
  return Make(version, *std::move(group), block_bytes,
              {record.members().begin(), record.members().end()}, codes);
}

std::optional<RankBlock> CodedVersion::DataAt(uint32_t stripe, uint32_t chunk,
                                              uint64_t position) const {
  const std::optional<uint64_t> block = layout().BlockAt(stripe, chunk, position);
  if (!block) return std::nullopt;
  return slabs.BlockOf(layout().MemberOf(stripe, chunk), *block);
}

std::optional<ReadRequest> CodedVersion::ReadOf(uint32_t stripe, uint32_t chunk,
                                                uint64_t position) const {
  ReadRequest request;
  SetVersion(version, request);
  request.set_blocks(1);
  if (chunk >= group.shape.k) {
    request.set_kind(ReadRequest::STORED_PARITY);
    request.set_stripe(stripe);
    request.set_parity(chunk - group.shape.k);
    request.set_first_block(position);
    request.set_coding(coding);
    return request;
  }
  const std::optional<RankBlock> block = DataAt(stripe, chunk, position);
  if (!block) return std::nullopt;
  request.set_kind(ReadRequest::DATA);
  request.set_rank(block->rank.value);
  request.set_first_block(block->block);
  return request;
}

}  // namespace unreft::smp
