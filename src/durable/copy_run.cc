#include "durable/copy_run.h"

#include <absl/container/flat_hash_set.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/format.h"
#include "durable/copy_record.h"

namespace unreft::durable {
namespace {

using Names = absl::flat_hash_set<std::string>;

absl::StatusOr<Names> OwnNames(ColdStore& store) {
  const absl::StatusOr<std::vector<ColdEntry>> files = store.List(kOwnDirectory);
  if (!files.ok()) return files.status();
  Names names;
  for (const ColdEntry& file : *files) names.insert(file.name);
  return names;
}

absl::Status Ended() { return absl::CancelledError("the copy was cancelled"); }

// Looks again and again until `is_there` says OK or fails with another than NotFound, until
// `within` has passed, if it is given: then the last answer.
template <typename Look>
absl::Status WaitFor(const CopyPace& pace, std::optional<Duration> within, Look look) {
  const Time begin = pace.now();
  while (true) {
    const absl::Status status = look();
    if (!absl::IsNotFound(status)) return status;
    if (within && pace.now() - begin >= *within) return status;
    if (!pace.pause(pace.look_every)) return Ended();
  }
}

absl::Status CheckEmpty(ColdStore& store) {
  const absl::StatusOr<std::vector<ColdEntry>> files = store.List("");
  if (!files.ok()) return files.status();
  if (files->empty()) return absl::OkStatus();
  const auto has = [&](std::string_view name) {
    return std::ranges::any_of(*files, [&](const ColdEntry& file) { return file.name == name; });
  };
  if (has(kMetadataFile)) {
    return absl::FailedPreconditionError(
        fmt::format("{}: it has a checkpoint already: name another directory", store.Describe()));
  }
  return absl::FailedPreconditionError(fmt::format(
      "{}: needed an empty directory, found {} files ({}{}): {}name another directory",
      store.Describe(), files->size(), files->front().name, files->size() > 1 ? ", ..." : "",
      has(kOrderFile) ? "a copy there was not completed: remove it, or " : ""));
}

// Ready are those whose files are there.
absl::Status CheckReady(ColdStore& store, const std::vector<NodeSlot>& nodes) {
  const absl::StatusOr<Names> names = OwnNames(store);
  if (!names.ok()) return names.status();
  std::vector<uint64_t> missing;
  for (const NodeSlot node : nodes) {
    if (!names->contains(ReadyFile(node))) missing.push_back(node.value);
  }
  if (missing.empty()) return absl::OkStatus();
  return absl::NotFoundError(fmt::format(
      "{}: node {} does not see what this node has written there: it has to be one directory that "
      "all nodes share",
      store.Describe(), fmt::join(missing, ", ")));
}

absl::Status CheckParts(ColdStore& store, uint64_t world) {
  const absl::StatusOr<Names> names = OwnNames(store);
  if (!names.ok()) return names.status();
  for (uint64_t rank = 0; rank < world; ++rank) {
    if (!names->contains(SlabFile(Rank{rank}))) {
      return absl::NotFoundError(fmt::format("rank {} is yet to be written", rank));
    }
  }
  return absl::OkStatus();
}

// NotFound is another's word for "not yet" while it is waited for; when it is not any more it says
// what stands in the way.
absl::Status Final(absl::Status status) {
  if (!absl::IsNotFound(status)) return status;
  return absl::FailedPreconditionError(status.message());
}

void RemoveMarks(ColdStore& store, const LeadTask& task) {
  // What is left of them does no harm.
  for (const NodeSlot node : task.nodes) (void)store.Remove(ReadyFile(node));
  (void)store.Remove(kGoFile);
}

absl::StatusOr<FinishedCopy> Lead(SegmentStore& segments, ColdStore& store, const LeadTask& task,
                                  const CopyPace& pace, OnProgress on_progress) {
  if (absl::Status status = store.Put(ReadyFile(task.own.node), ""); !status.ok()) return status;
  absl::Status status =
      WaitFor(pace, pace.ready_within, [&] { return CheckReady(store, task.nodes); });
  if (!status.ok()) return Final(std::move(status));
  if (status = store.Put(kGoFile, ""); !status.ok()) return status;
  status = WritePart(segments, store, task.own.part, on_progress);
  if (!status.ok()) return status;
  // How long others take nobody knows; who runs the copy ends it when one of them has failed.
  status = WaitFor(pace, std::nullopt, [&] { return CheckParts(store, task.order.world()); });
  if (!status.ok()) return status;
  return FinishCopy(store, task.order, task.map);
}

// `.metadata` first, which may be there although it was said to have failed: what lacks something
// never looks whole. The order last: what is left behind says what it is of.
//
// What is of another copy by now is that one's.
absl::Status RemoveAll(ColdStore& store, const PartOrder& order) {
  if (absl::Status status = CheckOrder(store, order); !status.ok()) {
    return absl::IsNotFound(status) ? absl::OkStatus() : status;
  }
  (void)store.Remove(kGoFile);  // nodes that write parts see it (FollowCopy)
  const absl::StatusOr<std::vector<ColdEntry>> files = store.List("");
  if (!files.ok()) return files.status();
  absl::Status first = store.Remove(kMetadataFile);
  if (absl::IsNotFound(first)) first = absl::OkStatus();
  if (!first.ok()) return first;
  for (const ColdEntry& file : *files) {
    if (file.name == kOrderFile || file.name == kMetadataFile) continue;
    // A node may take away what it wrote itself.
    const absl::Status status = store.Remove(file.name);
    if (!absl::IsNotFound(status)) first.Update(status);
  }
  first.Update(store.Remove(kOrderFile));
  return first;
}

}  // namespace

absl::StatusOr<FinishedCopy> LeadCopy(SegmentStore& segments, ColdStore& store,
                                      const LeadTask& task, const CopyPace& pace,
                                      OnProgress on_progress) {
  if (absl::Status status = CheckEmpty(store); !status.ok()) return status;
  // Of two that found it empty one succeeds.
  if (absl::Status status = store.Put(kOrderFile, EncodeOrder(task.order)); !status.ok()) {
    if (!absl::IsAlreadyExists(status)) return status;
    return absl::FailedPreconditionError(
        fmt::format("{}: another copy is being written there", store.Describe()));
  }
  absl::StatusOr<FinishedCopy> finished = Lead(segments, store, task, pace, on_progress);
  if (finished.ok()) {
    RemoveMarks(store, task);
    return finished;
  }
  const absl::Status removed = RemoveAll(store, task.own.part);
  if (removed.ok()) return finished;
  return absl::Status(finished.status().code(),
                      fmt::format("{}; what was written of the copy could not be removed: {}",
                                  finished.status().message(), removed.message()));
}

absl::Status FollowCopy(SegmentStore& segments, ColdStore& store, const CopyTask& task,
                        const CopyPace& pace, OnProgress on_progress) {
  absl::Status status =
      WaitFor(pace, pace.ready_within, [&] { return CheckOrder(store, task.part); });
  if (absl::IsNotFound(status)) {
    return absl::FailedPreconditionError(fmt::format(
        "{}: node {} does not see the order of this copy there: it has to be one directory that "
        "all nodes share ({})",
        store.Describe(), task.node, status.message()));
  }
  if (!status.ok()) return status;
  if (status = store.Put(ReadyFile(task.node), ""); !status.ok()) return status;
  status = WaitFor(pace, 2 * pace.ready_within, [&] {
    const absl::StatusOr<std::string> go = store.Get(kGoFile, 0);
    return go.status();
  });
  if (!status.ok()) return Final(std::move(status));
  if (status = WritePart(segments, store, task.part, on_progress); !status.ok()) return status;
  // Given up meanwhile: who leads may have taken all away before this was there.
  if (!absl::IsNotFound(store.Get(kGoFile, 0).status())) return absl::OkStatus();
  if (CheckOrder(store, task.part).ok() && store.Get(kRecordFile, kRecordBytesMax).ok()) {
    return absl::OkStatus();  // completed, and the marks were removed
  }
  for (const Rank rank : task.part.ranks) {
    (void)store.Remove(SlabFile(rank));
    (void)store.Remove(ItemsFile(rank));
  }
  return Ended();
}

}  // namespace unreft::durable
