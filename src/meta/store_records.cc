#include "meta/store_records.h"

#include <fmt/format.h>
#include <unreft/meta_store.pb.h>

#include <charconv>
#include <optional>
#include <utility>

#include "base/check.h"

namespace unreft::meta {
namespace {

constexpr char kHead[] = "m";

std::string KeyRecord(const std::string& key) { return "k/" + key; }
std::string LeaseRecord(LeaseId lease) { return fmt::format("l/{:016x}", lease.value); }
std::string RevisionRecord(Revision revision) { return fmt::format("h/{:016x}", revision.value); }

std::optional<uint64_t> NumberOf(std::string_view digits) {
  uint64_t number = 0;
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), number, 16);
  if (error != std::errc{} || end != digits.data() + digits.size()) return std::nullopt;
  return number;
}

void Encode(const KeyValue& kv, StoredKey& stored) {
  stored.set_key(kv.key);
  stored.set_value(kv.value);
  stored.set_create_revision(kv.create_revision.value);
  stored.set_mod_revision(kv.mod_revision.value);
  stored.set_version(kv.version);
  stored.set_lease(kv.lease.value);
}

KeyValue Decode(const StoredKey& stored) {
  return {.key = stored.key(),
          .value = stored.value(),
          .create_revision = {stored.create_revision()},
          .mod_revision = {stored.mod_revision()},
          .version = stored.version(),
          .lease = {stored.lease()}};
}

std::string Text(const KeyValue& kv) {
  StoredKey stored;
  Encode(kv, stored);
  return stored.SerializeAsString();
}

std::string Text(uint64_t ttl_s) {
  StoredLease stored;
  stored.set_ttl_s(ttl_s);
  return stored.SerializeAsString();
}

std::string Text(const std::vector<WatchEvent>& events) {
  StoredRevision stored;
  for (const WatchEvent& event : events) {
    StoredRevision::Event& next = *stored.add_events();
    next.set_is_delete(event.kind == WatchEvent::Kind::kDelete);
    Encode(event.kv, *next.mutable_kv());
  }
  return stored.SerializeAsString();
}

// Builds both batches, change by change.
class Batches {
 public:
  void Add(const std::string& key, std::optional<std::string> after,
           std::optional<std::string> before) {
    result_.forward.push_back({key, std::move(after)});
    result_.backward.push_back({key, std::move(before)});
  }
  StoreBatches Take() { return std::move(result_); }

 private:
  StoreBatches result_;
};

void AddLeases(const StoreState& state, const StoreChange& change, Batches& batches) {
  for (const auto& [lease, ttl_s] : change.leases_granted) {
    batches.Add(LeaseRecord(lease), Text(ttl_s), std::nullopt);
  }
  for (const LeaseId lease : change.leases_ended) {
    batches.Add(LeaseRecord(lease), std::nullopt, Text(state.leases().at(lease).ttl_s));
  }
}

void AddKeys(const StoreState& state, const StoreChange& change, Batches& batches) {
  for (const WatchEvent& event : change.events) {
    const auto found = state.keys().find(event.kv.key);
    std::optional<std::string> before;
    if (found != state.keys().end()) before = Text(found->second);
    std::optional<std::string> after;
    if (event.kind == WatchEvent::Kind::kPut) after = Text(event.kv);
    batches.Add(KeyRecord(event.kv.key), std::move(after), std::move(before));
  }
}

}  // namespace

RecordChange HeadRecord(uint64_t cluster_id, Revision revision, Revision first_watchable) {
  StoreMeta meta;
  meta.set_format(kStoreRecordsFormat);
  meta.set_min_reader(kStoreRecordsFormat);
  meta.set_cluster_id(cluster_id);
  meta.set_revision(revision.value);
  meta.set_first_watchable(first_watchable.value);
  return {kHead, meta.SerializeAsString()};
}

StoreBatches BatchesOf(const StoreState& state, uint64_t cluster_id, const StoreChange& change) {
  Batches batches;
  batches.Add(
      kHead,
      HeadRecord(cluster_id, state.RevisionAfter(change), state.FirstWatchableAfter(change)).value,
      HeadRecord(cluster_id, state.revision(), state.first_watchable()).value);
  AddLeases(state, change, batches);
  AddKeys(state, change, batches);
  for (size_t i = 0; i < state.HistoryToForget(change); ++i) {
    const StoreRevision& old = state.history()[i];
    batches.Add(RevisionRecord(old.revision), std::nullopt, Text(old.events));
  }
  if (!change.events.empty()) {
    batches.Add(RevisionRecord(state.RevisionAfter(change)), Text(change.events), std::nullopt);
  }
  return batches.Take();
}

namespace {

absl::Status Unreadable(const std::string& key) {
  return absl::DataLossError(fmt::format("record '{}' of the meta store cannot be read", key));
}

absl::StatusOr<uint64_t> LoadHead(const Record& record, StoreState& state) {
  StoreMeta meta;
  if (!meta.ParseFromString(record.value) || meta.cluster_id() == 0) return Unreadable(record.key);
  if (meta.min_reader() > kStoreRecordsFormat) {
    return absl::FailedPreconditionError(
        fmt::format("the meta store's records need a reader of format {}, this one is of {}",
                    meta.min_reader(), kStoreRecordsFormat));
  }
  state.LoadHead({meta.revision()}, {meta.first_watchable()});
  return meta.cluster_id();
}

absl::Status LoadOne(const Record& record, StoreState& state) {
  const std::string_view name =
      std::string_view(record.key).substr(std::min<size_t>(2, record.key.size()));
  if (record.key.starts_with("k/")) {
    StoredKey stored;
    if (!stored.ParseFromString(record.value)) return Unreadable(record.key);
    state.LoadKey(Decode(stored));
    return absl::OkStatus();
  }
  const std::optional<uint64_t> number = NumberOf(name);
  if (record.key.starts_with("l/") && number) {
    StoredLease stored;
    if (!stored.ParseFromString(record.value)) return Unreadable(record.key);
    state.LoadLease({*number}, stored.ttl_s());
    return absl::OkStatus();
  }
  StoredRevision stored;
  if (!record.key.starts_with("h/") || !number || !stored.ParseFromString(record.value)) {
    return Unreadable(record.key);
  }
  if (!state.history().empty() && state.history().back().revision.value >= *number) {
    return Unreadable(record.key);
  }
  StoreRevision revision{.revision = {*number}};
  for (const StoredRevision::Event& event : stored.events()) {
    revision.events.push_back(
        {event.is_delete() ? WatchEvent::Kind::kDelete : WatchEvent::Kind::kPut,
         Decode(event.kv())});
  }
  state.LoadRevision(std::move(revision));
  return absl::OkStatus();
}

// Of all that was read: nothing in it is newer than its head.
absl::Status CheckWhole(const StoreState& state) {
  const Revision newest = state.revision();
  const bool ends_at_head = state.history().empty() || state.history().back().revision <= newest;
  if (newest.value == 0 || state.first_watchable().value > newest.value + 1 || !ends_at_head) {
    return absl::DataLossError(
        fmt::format("the meta store is at revision {}, watchable from {}, and its history ends at "
                    "{}: records are missing or of another store",
                    newest, state.first_watchable(),
                    state.history().empty() ? newest : state.history().back().revision));
  }
  for (const auto& [key, kv] : state.keys()) {
    if (kv.mod_revision > newest || kv.create_revision > kv.mod_revision) {
      return absl::DataLossError(
          fmt::format("key '{}' of the meta store was made at revision {} and changed at {}, the "
                      "store is at {}",
                      key, kv.create_revision, kv.mod_revision, newest));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<uint64_t> LoadRecords(const std::vector<Record>& records, StoreState& state) {
  uint64_t cluster_id = 0;
  for (const Record& record : records) {
    if (record.key == kHead) {
      absl::StatusOr<uint64_t> head = LoadHead(record, state);
      if (!head.ok()) return head.status();
      cluster_id = *head;
    } else if (absl::Status status = LoadOne(record, state); !status.ok()) {
      return status;
    }
  }
  if (cluster_id == 0 && !records.empty()) return Unreadable(kHead);
  if (absl::Status status = CheckWhole(state); !status.ok()) return status;
  return cluster_id;
}

}  // namespace unreft::meta
