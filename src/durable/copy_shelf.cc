#include "durable/copy_shelf.h"

#include <absl/container/flat_hash_set.h>
#include <absl/functional/function_ref.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace unreft::durable {
namespace {

std::string Within(std::string_view copy, std::string_view file) {
  return fmt::format("{}/{}", copy, file);
}

// Of those that the job has written without being asked, the newest first.
PrunedCopies RemoveOwn(ColdStore& shelf, std::string_view job,
                       absl::FunctionRef<bool(const ShelvedCopy&)> goes) {
  PrunedCopies pruned;
  const absl::StatusOr<std::vector<ShelvedCopy>> copies = ListCopies(shelf, job);
  if (!copies.ok()) {
    pruned.status = copies.status();
    return pruned;
  }
  for (const ShelvedCopy& copy : *copies) {
    if (!copy.order.is_own() || !goes(copy)) continue;
    if (absl::Status status = RemoveCopy(shelf, copy.name); !status.ok()) {
      pruned.status.Update(status);
      continue;
    }
    pruned.removed.push_back(copy.name);
  }
  return pruned;
}

}  // namespace

absl::StatusOr<std::vector<ShelvedCopy>> ListCopies(ColdStore& shelf, std::string_view job) {
  const absl::StatusOr<std::vector<ColdEntry>> files = shelf.List("");
  if (!files.ok()) return files.status();
  absl::flat_hash_set<std::string> names;
  for (const ColdEntry& file : *files) names.insert(file.name);
  std::vector<ShelvedCopy> copies;
  for (const ColdEntry& file : *files) {
    const size_t slash = file.name.find('/');
    if (slash == std::string::npos || file.name.substr(slash + 1) != kOrderFile) continue;
    ShelvedCopy copy;
    copy.name = file.name.substr(0, slash);
    const absl::StatusOr<std::string> bytes = shelf.Get(file.name, kRecordBytesMax);
    if (absl::IsNotFound(bytes.status())) continue;  // it has gone meanwhile
    if (!bytes.ok()) return bytes.status();
    absl::StatusOr<CopyOrder> order = DecodeOrder(*bytes, file.name);
    if (!order.ok() || order->job() != job || order->format() != CopyOrder::DCP) continue;
    copy.order = *std::move(order);
    copy.is_complete = names.contains(Within(copy.name, kMetadataFile)) &&
                       names.contains(Within(copy.name, kRecordFile));
    copies.push_back(std::move(copy));
  }
  std::stable_sort(copies.begin(), copies.end(), [](const ShelvedCopy& a, const ShelvedCopy& b) {
    return a.order.written_ms() > b.order.written_ms();
  });
  return copies;
}

absl::StatusOr<std::vector<std::string>> UnreadableCopies(ColdStore& shelf) {
  const absl::StatusOr<std::vector<ColdEntry>> files = shelf.List("");
  if (!files.ok()) return files.status();
  absl::flat_hash_set<std::string> names;
  for (const ColdEntry& file : *files) names.insert(file.name);
  std::vector<std::string> unreadable;
  for (const ColdEntry& file : *files) {
    const size_t slash = file.name.find('/');
    if (slash == std::string::npos || file.name.substr(slash + 1) != kOrderFile) continue;
    const std::string name = file.name.substr(0, slash);
    if (!names.contains(Within(name, kMetadataFile))) continue;
    const absl::StatusOr<std::string> bytes = shelf.Get(file.name, kRecordBytesMax);
    if (absl::IsNotFound(bytes.status())) continue;  // it has gone meanwhile
    if (!bytes.ok()) return bytes.status();
    if (!DecodeOrder(*bytes, file.name).ok()) unreadable.push_back(name);
  }
  return unreadable;
}

absl::Status RemoveCopy(ColdStore& shelf, const std::string& name) {
  const absl::StatusOr<std::vector<ColdEntry>> files = shelf.List(name);
  if (!files.ok()) return files.status();
  absl::Status first = shelf.Remove(Within(name, kMetadataFile));
  if (!first.ok() && !absl::IsNotFound(first)) return first;
  first = absl::OkStatus();
  for (const ColdEntry& file : *files) {
    if (file.name == Within(name, kMetadataFile) || file.name == Within(name, kOrderFile)) continue;
    if (absl::Status status = shelf.Remove(file.name); !absl::IsNotFound(status)) {
      first.Update(status);
    }
  }
  // Whoever completes it meanwhile finds the order gone, or its mark goes here.
  const auto remove_mark = [&] {
    const absl::Status status = shelf.Remove(Within(name, kMetadataFile));
    if (!absl::IsNotFound(status)) first.Update(status);
  };
  remove_mark();
  first.Update(shelf.RemoveLeftovers(name, std::chrono::system_clock::time_point::max()).status());
  // Last: until then it is known whose it was, and it is found again.
  if (!first.ok()) return first;
  if (absl::Status status = shelf.Remove(Within(name, kOrderFile)); !absl::IsNotFound(status)) {
    first.Update(status);
  }
  remove_mark();
  return first;
}

absl::StatusOr<uint64_t> NextWrittenMs(ColdStore& shelf, std::string_view job, uint64_t now_ms) {
  const absl::StatusOr<std::vector<ShelvedCopy>> copies = ListCopies(shelf, job);
  if (!copies.ok()) return copies.status();
  for (const ShelvedCopy& copy : *copies) now_ms = std::max(now_ms, copy.order.written_ms() + 1);
  return now_ms;
}

PrunedCopies PruneCopies(ColdStore& shelf, std::string_view job, std::string_view id,
                         uint64_t keep) {
  uint64_t complete = 0;
  return RemoveOwn(shelf, job, [&](const ShelvedCopy& copy) {
    if (copy.is_complete) ++complete;
    const bool is_kept = copy.is_complete ? complete <= keep : complete == 0;
    return !is_kept && copy.order.id() != id;
  });
}

PrunedCopies RemoveUnfinished(ColdStore& shelf, std::string_view job) {
  return RemoveOwn(shelf, job, [&](const ShelvedCopy& copy) {
    if (copy.is_complete) return false;
    // Over a network a directory may be listed as it was before another node has completed it.
    const auto mark = shelf.Get(Within(copy.name, kMetadataFile), kRecordBytesMax);
    return absl::IsNotFound(mark.status());
  });
}

}  // namespace unreft::durable
