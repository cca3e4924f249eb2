// A guard's segment, from any bytes: its header as it is, or with the CRCs of its bodies mended,
// and then also with those of the record and the tables.
//
// The first byte chooses; the second is how many of the bytes are the header's, the rest is the
// record.
#include <cstring>

#include "base/check.h"
#include "base/crc32c.h"
#include "smp/job/cluster_records.h"
#include "smp/protect/group_view.h"
#include "smp/protect/guard_store.h"
#include "tests/fuzz/fuzz.h"
#include "tests/unit/format_testing.h"

namespace unreft::fuzz {
namespace {

constexpr char kAsItIs = 0;
constexpr char kMended = 1;

void Mend(GuardHeader& header) {
  SetBodyCrc(header.geometry);
  SetBodyCrc(header.grant);
  SetBodyCrc(header.seal);
}

// As a daemon that adopts the guard, and later serves from it, does.
void UseRecord(const GuardRecord& record, const GuardView& view) {
  UNREFT_CHECK(smp::CodingOf(record.group(), record.members()) != 0);
  for (const uint64_t slot : record.group().slots()) {
    google::protobuf::RepeatedPtrField<Group> groups;
    *groups.Add() = record.group();
    const auto group = smp::FindGroup(groups, NodeSlot{slot});
    if (!group) continue;
    UNREFT_CHECK(group->self < group->members());
    const auto slabs = smp::GroupSlabs::Make(group->shape, view.geometry().block_bytes,
                                             {record.members().begin(), record.members().end()});
    if (!slabs.ok()) continue;
    for (const uint32_t member : group->Predecessors()) {
      UNREFT_CHECK(member < slabs->members().size());
      for (const RankSlab& slab : slabs->members()[member].slabs()) {
        (void)slabs->MemberBlockOf(member, Rank{slab.rank()}, 0);
      }
    }
  }
}

void Use(GuardView view) {
  const auto grant = view.CheckedGrant();
  volatile uint32_t sink = 0;
  if (grant.ok()) {
    for (uint32_t chunk = 0; chunk < view.geometry().chunks; ++chunk) {
      for (const uint32_t crc : view.parity_crcs(chunk, grant->positions)) sink = sink + crc;
      for (uint64_t position = 0; position < grant->positions; ++position) {
        for (const uint32_t crc : view.input_crcs(chunk, position, grant->sources)) {
          sink = sink + crc;
        }
        sink = sink + static_cast<uint8_t>(view.block(chunk, position).back());
      }
    }
  }
  const auto record = smp::ReadGuardRecord(view);
  if (record.ok()) UseRecord(*record, view);
  (void)smp::VerifyGuard(view);
}

GuardRecord ExampleRecord() {
  GuardRecord record;
  record.set_format(kGuardRecordFormat);
  record.set_min_reader(kGuardRecordMinReader);
  for (uint64_t slot = 0; slot < 5; ++slot) record.mutable_group()->add_slots(slot);
  record.mutable_group()->set_k(3);
  for (uint64_t rank = 0; rank < 5; ++rank) {
    RankSlab& slab = *record.add_members()->add_slabs();
    slab.set_rank(rank);
    slab.set_generation(7);
    slab.set_data_bytes(1000 * rank);
  }
  MemberDescription& description = *record.add_descriptions();
  description.set_slot(4);
  description.add_slabs()->set_manifest("manifest");
  return record;
}

std::string Input(char how, std::string_view header, const std::string& record) {
  return std::string{how, static_cast<char>(header.size())} + std::string(header) + record;
}

}  // namespace

std::vector<std::string> Seeds() {
  const std::string record = ExampleRecord().SerializeAsString();
  std::vector<std::string> seeds;
  for (const std::string& header : GoldenFiles("guard_header")) {
    for (const char how : {kAsItIs, kMended}) {
      seeds.push_back(Input(how, header, ""));
      seeds.push_back(Input(how, header, record));
    }
  }
  return seeds;
}

}  // namespace unreft::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace unreft;  // NOLINT(google-build-using-namespace): one function
  static_assert(sizeof(GuardHeader) < 256);
  if (size < 2) return 0;
  const bool mend = data[0] == fuzz::kMended;
  std::string_view bytes = fuzz::Bytes(data + 2, size - 2);
  const std::string_view head = bytes.substr(0, std::min<size_t>(data[1], sizeof(GuardHeader)));
  const std::string_view record = bytes.substr(head.size());
  PageBuffer guard = ExampleGuard();
  std::memcpy(guard.span().data(), head.data(), head.size());
  auto& header = *reinterpret_cast<GuardHeader*>(guard.span().data());
  if (mend) fuzz::Mend(header);
  auto view = GuardView::Check(guard.span());
  if (!view.ok()) return 0;
  if (mend && record.size() <= view->record().size()) {
    std::memcpy(view->record().data(), record.data(), record.size());
    header.seal.record_bytes = record.size();
    header.seal.record_crc = Crc32c(view->record().first(record.size()));
    header.seal.parity_crc_table_crc = Crc32c(view->parity_crc_table());
    header.seal.input_crc_table_crc = Crc32c(view->input_crc_table());
    fuzz::Mend(header);
  }
  fuzz::Use(*view);
  return 0;
}
