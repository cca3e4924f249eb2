#include "durable/copy_run.h"

#include <absl/container/flat_hash_set.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <set>
#include <utility>

#include "base/format.h"
#include "base/text.h"
#include "durable/copy_record.h"
#include "durable/weight_finish.h"
#include "durable/weight_names.h"

namespace unreft::durable {
namespace {

// Of files under way: who writes one to a copy that was given up is to fail.
constexpr auto kAny = std::chrono::system_clock::time_point::max();

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

// What is incomplete counts.
bool HasWeights(const std::vector<ColdEntry>& files) {
  return std::ranges::any_of(
      files, [](const ColdEntry& file) { return file.name.ends_with(kWeightFileEnd); });
}

// A reader of all files of a directory would take it for a part of the copy.
absl::Status CheckNothingElse(ColdStore& store) {
  const absl::StatusOr<std::string> any = store.Anything("");
  if (!any.ok()) return any.status();
  if (any->empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      fmt::format("{}: needed an empty directory, found '{}': name another directory",
                  store.Describe(), CleanText(*any, 256)));
}

absl::Status CheckEmpty(ColdStore& store) {
  const absl::StatusOr<std::vector<ColdEntry>> files = store.List("");
  if (!files.ok()) return files.status();
  if (files->empty()) return CheckNothingElse(store);
  const auto has = [&](std::string_view name) {
    return std::ranges::any_of(*files, [&](const ColdEntry& file) { return file.name == name; });
  };
  const bool has_weights = HasWeights(*files) && has(kRecordFile) && !has(kIncompleteFile);
  if (has(kMetadataFile) || has_weights) {
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

// What the node says when it has seen the order: of a copy in safetensors which weights it has,
// whose keys depend on those of all nodes.
absl::StatusOr<std::string> ReadyBytes(SegmentStore& segments, const PartOrder& part,
                                       CopyOrder::Format format) {
  if (format == CopyOrder::DCP) return "";
  const auto slabs = OpenSlabs(segments, part);
  if (!slabs.ok()) return slabs.status();
  std::set<std::string> names;
  std::set<std::string> trained;
  for (const auto& slab : *slabs) {
    names.merge(ModelNames(slab->manifest()));
    trained.merge(TrainedParameters(slab->manifest()));
  }
  CopyReady ready;
  ready.set_id(part.id);
  for (const std::string& name : names) ready.add_names(name);
  for (const std::string& parameter : trained) ready.add_trained(parameter);
  return EncodeReady(ready);
}

// What all are told when every node has said that.
absl::StatusOr<std::string> GoBytes(ColdStore& store, const LeadTask& task) {
  if (task.order.format() == CopyOrder::DCP) return "";
  std::set<std::string> names;
  std::set<std::string> trained;
  for (const NodeSlot node : task.nodes) {
    const absl::StatusOr<std::string> bytes = store.Get(ReadyFile(node), kRecordBytesMax);
    if (!bytes.ok()) return Final(bytes.status());
    const absl::StatusOr<CopyReady> ready = DecodeReady(*bytes, ReadyFile(node));
    if (!ready.ok()) return ready.status();
    if (ready->id() != task.order.id()) {
      return absl::DataLossError(fmt::format("{}: it is of another copy", ReadyFile(node)));
    }
    names.insert(ready->names().begin(), ready->names().end());
    trained.insert(ready->trained().begin(), ready->trained().end());
  }
  if (absl::Status status = CheckTrained(names, trained); !status.ok()) return status;
  CopyGo go;
  go.set_id(task.order.id());
  for (const std::string& name : PlainNames(names)) go.add_names(name);
  for (const auto& [from, to] : task.map) go.add_map(fmt::format("{}={}", from, to));
  return EncodeGo(go);
}

// What the weights are called, by those bytes.
absl::StatusOr<std::optional<WeightNames>> NamesOf(const std::string& go_bytes,
                                                   const PartOrder& part,
                                                   CopyOrder::Format format) {
  if (format == CopyOrder::DCP) return std::nullopt;
  const absl::StatusOr<CopyGo> go = DecodeGo(go_bytes, kGoFile);
  if (!go.ok()) return go.status();
  if (go->id() != part.id) {
    return absl::DataLossError(fmt::format("{}: it is of another copy", kGoFile));
  }
  KeyMap map;
  for (const std::string& text : go->map()) {
    auto mapping = ParseKeyMapping(text);
    if (!mapping.ok()) return mapping.status();
    map.push_back(*std::move(mapping));
  }
  return WeightNames({go->names().begin(), go->names().end()}, std::move(map));
}

// So that nobody takes what there is for a whole copy: readers of safetensors read every file of
// that ending, and fail at one without bytes.
absl::Status MarkIncomplete(ColdStore& store) {
  const absl::StatusOr<std::string> found = store.Get(kIncompleteFile, 0);
  if (!absl::IsNotFound(found.status())) return found.status();
  return store.Put(kIncompleteFile, "");
}

void RemoveMarks(ColdStore& store, const LeadTask& task) {
  // What is left of them does no harm.
  for (const NodeSlot node : task.nodes) (void)store.Remove(ReadyFile(node));
  (void)store.Remove(kGoFile);
}

absl::StatusOr<FinishedCopy> Lead(SegmentStore& segments, ColdStore& store, const LeadTask& task,
                                  const CopyPace& pace, OnProgress on_progress) {
  const CopyOrder::Format format = task.order.format();
  PartOrder part = task.own.part;
  const absl::StatusOr<std::string> ready = ReadyBytes(segments, part, format);
  if (!ready.ok()) return ready.status();
  absl::Status status = format == CopyOrder::DCP ? absl::OkStatus() : MarkIncomplete(store);
  if (!status.ok()) return status;
  if (status = store.Put(ReadyFile(task.own.node), *ready); !status.ok()) return status;
  status = WaitFor(pace, pace.ready_within, [&] { return CheckReady(store, task.nodes); });
  if (!status.ok()) return Final(std::move(status));
  const absl::StatusOr<std::string> go = GoBytes(store, task);
  if (!go.ok()) return go.status();
  absl::StatusOr<std::optional<WeightNames>> names = NamesOf(*go, part, format);
  if (!names.ok()) return names.status();
  part.weights = *std::move(names);
  if (status = store.Put(kGoFile, *go); !status.ok()) return status;
  status = WritePart(segments, store, part, on_progress);
  if (!status.ok()) return status;
  // How long others take nobody knows; who runs the copy ends it when one of them has failed.
  status = WaitFor(pace, std::nullopt, [&] { return CheckParts(store, task.order.world()); });
  if (!status.ok()) return status;
  if (part.weights) return FinishWeights(store, task.order, *part.weights);
  return FinishCopy(store, task.order, task.map);
}

// What makes it a copy first, which may be so although it was said to have failed: what lacks
// something never looks whole. The order last: what is left behind says what it is of.
//
// What is of another copy by now is that one's.
absl::Status RemoveAll(ColdStore& store, const PartOrder& order) {
  if (absl::Status status = ReadOrder(store, order).status(); !status.ok()) {
    return absl::IsNotFound(status) ? absl::OkStatus() : status;
  }
  (void)store.Remove(kGoFile);  // nodes that write parts see it (FollowCopy)
  const absl::StatusOr<std::vector<ColdEntry>> files = store.List("");
  if (!files.ok()) return files.status();
  const bool has_weights = HasWeights(*files);
  absl::Status first = store.Remove(kMetadataFile);
  if (absl::IsNotFound(first) && has_weights) first = MarkIncomplete(store);
  if (!first.ok() && !absl::IsNotFound(first)) return first;
  if (first = store.Remove(kIndexFile); absl::IsNotFound(first)) first = absl::OkStatus();
  for (const ColdEntry& file : *files) {
    if (file.name == kOrderFile || file.name == kMetadataFile || file.name == kIncompleteFile) {
      continue;
    }
    // A node may take away what it wrote itself.
    const absl::Status status = store.Remove(file.name);
    if (!absl::IsNotFound(status)) first.Update(status);
  }
  first.Update(store.RemoveLeftovers("", kAny).status());
  if (has_weights && first.ok()) first = store.Remove(kIncompleteFile);
  if (first.ok()) first = store.Remove(kOrderFile);
  return first;
}

// Whether the copy is no more, and nothing that has its place: not where it is complete although
// this node's last word of its part was lost, where another copy is by now, or where neither can be
// told. What is left then goes with its order.
bool IsGivenUp(ColdStore& store, const PartOrder& part) {
  if (absl::IsNotFound(store.Get(kOrderFile, kRecordBytesMax).status())) return true;
  return ReadOrder(store, part).ok() &&
         absl::IsNotFound(store.Get(kRecordFile, kRecordBytesMax).status());
}

// What a node has written of a copy that was given up.
void RemovePart(ColdStore& store, const PartOrder& part, uint64_t world) {
  const absl::StatusOr<std::vector<ColdEntry>> files = store.List("");
  for (const Rank rank : part.ranks) {
    (void)store.Remove(SlabFile(rank));
    if (!part.weights) {
      (void)store.Remove(ItemsFile(rank));
      continue;
    }
    if (!files.ok()) continue;
    for (const ColdEntry& file : *files) {
      if (IsWeightFileOf(file.name, rank, world)) (void)store.Remove(file.name);
    }
  }
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
  CopyOrder order;
  absl::Status status = WaitFor(pace, pace.ready_within, [&] {
    absl::StatusOr<CopyOrder> found = ReadOrder(store, task.part);
    if (found.ok()) order = *std::move(found);
    return found.status();
  });
  if (absl::IsNotFound(status)) {
    return absl::FailedPreconditionError(fmt::format(
        "{}: node {} does not see the order of this copy there: it has to be one directory that "
        "all nodes share ({})",
        store.Describe(), task.node, status.message()));
  }
  if (!status.ok()) return status;
  const absl::StatusOr<std::string> ready = ReadyBytes(segments, task.part, order.format());
  if (!ready.ok()) return ready.status();
  if (status = store.Put(ReadyFile(task.node), *ready); !status.ok()) return status;
  std::string go;
  const auto look_for_go = [&] {
    absl::StatusOr<std::string> found = store.Get(kGoFile, kRecordBytesMax);
    if (found.ok()) go = *std::move(found);
    return found.status();
  };
  status = WaitFor(pace, 2 * pace.ready_within, look_for_go);
  if (!status.ok()) return Final(std::move(status));
  PartOrder part = task.part;
  absl::StatusOr<std::optional<WeightNames>> names = NamesOf(go, part, order.format());
  if (!names.ok()) return names.status();
  part.weights = *std::move(names);
  status = WritePart(segments, store, part, on_progress);
  // Given up meanwhile: who leads may have taken all away before this was there.
  if (!absl::IsNotFound(look_for_go())) return status;
  if (status.ok() && ReadOrder(store, part).ok() && store.Get(kRecordFile, kRecordBytesMax).ok()) {
    return absl::OkStatus();  // completed, and the marks were removed
  }
  if (IsGivenUp(store, part)) RemovePart(store, part, order.world());
  return status.ok() ? Ended() : status;
}

}  // namespace unreft::durable
