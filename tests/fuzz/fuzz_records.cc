// Records: each of a job's, in the meta store; the copy of them that a node keeps; and those of the
// embedded store on its disk.
//
// The first byte chooses a record of the job, by its place among all of them, or beyond them the
// copy, or the embedded store's disk: records, each its key's length and key, its value's length in
// two bytes and value.
#include <unreft/meta_store.pb.h>

#include <iterator>

#include "base/check.h"
#include "meta/record_checks.h"
#include "meta/record_copy.h"
#include "meta/store_records.h"
#include "tests/fuzz/draw.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/job_records.h"

namespace unreft::fuzz {
namespace {

constexpr char kCopy = 10;
constexpr char kDisk = 11;

template <typename Message>
void Use(const std::string& bytes) {
  Message message;
  if (!message.ParseFromString(bytes)) return;
  if (meta::CheckRecord(message).ok()) UseRecord(message);
}

// Whatever the CRC says: of a copy it is made right.
void UseCopy(std::string bytes) {
  const auto decode = [&bytes] { return meta::DecodeCopy(std::as_bytes(std::span(bytes))); };
  absl::StatusOr<meta::RecordCopy> copy = decode();
  if (!copy.ok() && bytes.size() >= sizeof(meta::CopyHeader)) {
    meta::SealCopy(bytes);
    copy = decode();
  }
  if (!copy.ok()) return;
  UseRecord(copy->records.view.value);
  UseRecord(copy->records.timeline.value);
  UseRecord(copy->records.commit.value);
}

void UseDisk(Draw& draw) {
  std::vector<Record> records;
  while (!draw.empty()) {
    std::string key = draw.Text();
    records.push_back({std::move(key), draw.LongText()});
  }
  meta::StoreState state({.history_events_max = 4});
  const auto cluster = meta::LoadRecords(records, state);
  if (!cluster.ok() || *cluster == 0) return;
  // The store goes on from there: a change is decided, written and applied.
  for (const char* key : {"a", "b"}) {
    meta::StoreTxn txn;
    txn.then.push_back(meta::StorePut{key, "value", {}});
    txn.then.push_back(meta::StoreDelete{{"unreft/", "unreft0"}});
    auto decided = state.Decide(txn);
    if (!decided.ok()) return;
    const meta::Revision before = state.revision();
    (void)meta::BatchesOf(state, *cluster, decided->second);
    state.Apply(std::move(decided->second));
    UNREFT_CHECK(state.revision() > before);
    UNREFT_CHECK(state.first_watchable().value <= state.revision().value + 1);
  }
  while (!state.leases().empty()) {
    auto change = state.DecideRevoke(state.leases().begin()->first);
    UNREFT_CHECK(change.ok());
    (void)meta::BatchesOf(state, *cluster, *change);
    state.Apply(*std::move(change));
  }
}

}  // namespace

std::vector<std::string> Seeds() {
  std::vector<std::string> seeds;
  const auto records = ExampleRecords();
  const char* const kinds[] = {"view",   "timeline", "commit",   "abandoned", "pins",
                               "node/0", "spare/9",  "settings", "refused/3", "seed"};
  static_assert(std::size(kinds) == kCopy);
  for (char kind = 0; kind < kCopy; ++kind) {
    seeds.push_back(kind + records.at(kinds[static_cast<int>(kind)])->SerializeAsString());
  }
  meta::JobState job;
  job.store_id = "0123456789abcdef";
  job.view.bytes = records.at("view")->SerializeAsString();
  job.timeline.bytes = records.at("timeline")->SerializeAsString();
  job.commit.bytes = records.at("commit")->SerializeAsString();
  seeds.push_back(kCopy + meta::EncodeCopy(job));
  // What a store has on its disk after a grant and two changes.
  meta::StoreState state({});
  std::map<std::string, std::string> disk;
  const auto apply = [&](meta::StoreChange change) {
    for (RecordChange& record : meta::BatchesOf(state, 77, change).forward) {
      if (record.value) disk[record.key] = *record.value;
    }
    state.Apply(std::move(change));
  };
  apply(*state.DecideGrant({7}, 10));
  for (const auto& [name, record] : records) {
    meta::StoreTxn txn;
    txn.then.push_back(
        meta::StorePut{"unreft/job/" + name, record->SerializeAsString(), meta::LeaseId{7}});
    apply(state.Decide(txn)->second);
  }
  std::string bytes(1, kDisk);
  for (const auto& [key, value] : disk) {
    bytes += static_cast<char>(key.size()) + key + LongTextOf(value);
  }
  seeds.push_back(bytes);
  return seeds;
}

}  // namespace unreft::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  namespace fuzz = unreft::fuzz;
  fuzz::Draw draw(fuzz::Bytes(data, size));
  switch (draw.Below(fuzz::kDisk + 1)) {
    case 0:
      fuzz::Use<unreft::ViewRecord>(draw.Rest());
      break;
    case 1:
      fuzz::Use<unreft::TimelineRecord>(draw.Rest());
      break;
    case 2:
      fuzz::Use<unreft::CommitRecord>(draw.Rest());
      break;
    case 3:
      fuzz::Use<unreft::AbandonRecord>(draw.Rest());
      break;
    case 4:
      fuzz::Use<unreft::PinRecord>(draw.Rest());
      break;
    case 5:
      fuzz::Use<unreft::PresenceRecord>(draw.Rest());
      break;
    case 6:
      fuzz::Use<unreft::SpareRecord>(draw.Rest());
      break;
    case 7:
      fuzz::Use<unreft::SettingsRecord>(draw.Rest());
      break;
    case 8:
      fuzz::Use<unreft::RefusedRecord>(draw.Rest());
      break;
    case 9:
      fuzz::Use<unreft::SeedRecord>(draw.Rest());
      break;
    case fuzz::kCopy:
      fuzz::UseCopy(draw.Rest());
      break;
    default:
      fuzz::UseDisk(draw);
  }
  return 0;
}
