#include "durable/copy_entries.h"

#include <absl/container/flat_hash_set.h>
#include <absl/status/status.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/format.h"
#include "base/text.h"
#include "durable/plain_reader.h"
#include "layout/box.h"
#include "layout/memory_order.h"

namespace unreft::durable {
namespace {

// Of a shape, as a manifest says it; UINT64_MAX for more.
uint64_t ElementsOf(const std::vector<uint64_t>& shape) {
  uint64_t elements = 1;
  for (const uint64_t extent : shape) {
    if (__builtin_mul_overflow(elements, extent, &elements)) return UINT64_MAX;
  }
  return elements;
}

// Each element once: manifests are checked one by one, so those of two ranks may overlap.
absl::Status CheckWhole(DcpEntry& entry) {
  std::sort(entry.chunks.begin(), entry.chunks.end(),
            [](const DcpChunk& a, const DcpChunk& b) { return a.offset < b.offset; });
  uint64_t found = 0;
  bool overflows = false;
  std::vector<layout::Box> boxes;
  boxes.reserve(entry.chunks.size());
  for (const DcpChunk& chunk : entry.chunks) {
    boxes.push_back({chunk.offset, chunk.extent});
    overflows |= __builtin_add_overflow(found, boxes.back().elements(), &found);
  }
  const uint64_t needed = ElementsOf(entry.global_shape);
  if (overflows || found != needed) {
    return absl::DataLossError(
        fmt::format("tensor '{}': needed each of its {} elements once, found {} in {} items",
                    CleanText(entry.key, 256), needed, found, entry.chunks.size()));
  }
  const auto overlap = layout::FindOverlap(boxes);
  if (!overlap.ok()) {
    return absl::Status(
        overlap.status().code(),
        fmt::format("tensor '{}': {}", CleanText(entry.key, 256), overlap.status().message()));
  }
  if (!*overlap) return absl::OkStatus();
  const auto [first, second] = **overlap;
  return absl::DataLossError(fmt::format(
      "tensor '{}': needed each of its {} elements once, found items that overlap, {} and {}",
      CleanText(entry.key, 256), needed, layout::BoxText(boxes[first]),
      layout::BoxText(boxes[second])));
}

// What ranks say of the optimizers, put together.
class Optimizers {
 public:
  // DataLoss for what no rank has written.
  absl::Status Add(const PlainDict& record) {
    const auto* const optimizers = PartOf<PlainSequence>(record, "optimizers");
    if (optimizers == nullptr) return None("a list of optimizers");
    groups_.resize(std::max(groups_.size(), optimizers->items.size()));
    for (size_t i = 0; i < optimizers->items.size(); ++i) {
      const auto* const optimizer = optimizers->items[i].As<PlainDict>();
      if (optimizer == nullptr) return None("an optimizer");
      const auto* const groups = PartOf<PlainSequence>(*optimizer, "groups");
      const auto* const states = PartOf<PlainDict>(*optimizer, "states");
      if (groups == nullptr || states == nullptr) return None("groups and states of an optimizer");
      if (absl::Status status = AddGroups(groups_[i], groups->items); !status.ok()) return status;
      AddStates(*states);
    }
    return absl::OkStatus();
  }

  void AppendTo(const CopyNames& names, std::vector<ValueEntry>& entries) const {
    int64_t number = 0;
    for (const std::vector<PlainDict>& groups : groups_) {
      for (const PlainDict& group : groups) {
        for (const auto& [key, value] : group.items) {
          const auto* const name = key.As<std::string>();
          if (name == nullptr) continue;
          entries.push_back(
              {names.At({Text("optim"), Text("param_groups"), number, *name}), value, {}});
        }
        ++number;
      }
    }
    for (const auto& [place, value] : states_) {
      entries.push_back(
          {names.At({Text("optim"), Text("state"), place.first, place.second}), value, {}});
    }
  }

 private:
  static std::string Text(const char* text) { return text; }

  static absl::Status None(std::string_view needed) {
    return absl::DataLossError(fmt::format("extras: needed {}, found none", needed));
  }

  template <typename Kind>
  static const Kind* PartOf(const PlainDict& dict, const char* name) {
    const PlainValue* const part = dict.Find(name);
    return part == nullptr ? nullptr : part->As<Kind>();
  }

  static absl::Status AddGroups(std::vector<PlainDict>& known,
                                const std::vector<PlainValue>& groups) {
    for (size_t i = 0; i < groups.size(); ++i) {
      const auto* const group = groups[i].As<PlainDict>();
      const auto* const params =
          group == nullptr ? nullptr : PartOf<PlainSequence>(*group, "params");
      if (params == nullptr) return None("a group of parameters of an optimizer");
      if (i == known.size()) {
        known.push_back(*group);
      } else {
        AddParameters(known[i], *params);
      }
    }
    return absl::OkStatus();
  }

  // Ranks of a pipeline have parameters of their own in a group that all have.
  static void AddParameters(PlainDict& known, const PlainSequence& more) {
    for (auto& [key, value] : known.items) {
      const auto* const name = key.As<std::string>();
      auto* const params = std::get_if<PlainSequence>(&value.value);
      if (name == nullptr || *name != "params" || params == nullptr) continue;
      absl::flat_hash_set<std::string> there;
      for (const PlainValue& param : params->items) {
        if (const auto* const text = param.As<std::string>()) there.insert(*text);
      }
      for (const PlainValue& param : more.items) {
        const auto* const text = param.As<std::string>();
        if (text != nullptr && there.insert(*text).second) params->items.push_back(param);
      }
    }
  }

  void AddStates(const PlainDict& states) {
    for (const auto& [name, state] : states.items) {
      const auto* const parameter = name.As<std::string>();
      const auto* const values = state.As<PlainDict>();
      if (parameter == nullptr || values == nullptr) continue;
      for (const auto& [key, value] : values->items) {
        const auto* const text = key.As<std::string>();
        if (text != nullptr) states_.try_emplace({*parameter, *text}, value);
      }
    }
  }

  std::vector<std::vector<PlainDict>> groups_;  // of each optimizer
  std::map<std::pair<std::string, std::string>, PlainValue> states_;
};

CopyNames NamesOf(std::span<const CopiedSlab> slabs, const KeyMap& map) {
  CopyNames names(map);
  for (const CopiedSlab& slab : slabs) {
    for (const TensorSpec& spec : slab.manifest.tensors)
      names.Add(layout::ToLogical(spec).spec.name);
    for (const auto& [name, entry] : slab.saved.catalogue) names.Place(name, entry.path);
  }
  return names;
}

// Of a type that no tensor with elements could be stored of there is none.
absl::Status AddEmptyTensors(const CopiedSlab& slab, const CopyNames& names, EntryTable& table) {
  for (const auto& [name, saved] : slab.saved.catalogue) {
    if (!saved.empty) continue;
    const std::optional<Dtype> dtype = DtypeNamed(saved.empty->first);
    if (!dtype) continue;
    const TensorSpec spec{.name = name, .dtype = *dtype, .global_shape = saved.empty->second};
    const auto entry = table.EntryOf(spec, names.Of(name), slab.manifest.rank);
    if (!entry.ok()) return entry.status();
  }
  return absl::OkStatus();
}

// As it was serialised; none where the rank has not saved it.
std::optional<std::string> SavedValue(std::span<const CopiedSlab> slabs, Rank rank,
                                      const std::string& name) {
  const auto slab = std::ranges::find(
      slabs, rank, [](const CopiedSlab& candidate) { return candidate.manifest.rank; });
  if (slab == slabs.end()) return std::nullopt;
  const auto value = slab->saved.values.find(name);
  if (value == slab->saved.values.end()) return std::nullopt;
  const auto [at, bytes] = value->second;
  return slab->extras.substr(at, bytes);
}

absl::Status AddSavedValues(std::span<const CopiedSlab> slabs, const CopyNames& names,
                            std::vector<ValueEntry>& entries) {
  for (const CopiedSlab& slab : slabs) {
    for (const auto& [name, saved] : slab.saved.catalogue) {
      if (!saved.value_of) continue;
      std::optional<std::string> value = SavedValue(slabs, *saved.value_of, name);
      if (!value) {
        return absl::DataLossError(
            fmt::format("rank {}: extras: needed the value of '{}', found none", *saved.value_of,
                        CleanText(name, 256)));
      }
      entries.push_back({names.Of(name), {}, std::move(value)});
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<DcpEntry*> EntryTable::EntryOf(const TensorSpec& logical, CopyName name, Rank rank) {
  auto [found, is_new] = entries_.try_emplace(name.key);
  auto& [stored, entry] = found->second;
  if (is_new) {
    stored = logical.name;
    entry = {name.key,      std::move(name.path), /*is_tensor=*/true,
             logical.dtype, logical.global_shape, {}};
  } else if (stored != logical.name) {
    return absl::InvalidArgumentError(
        fmt::format("map: tensors '{}' and '{}' would both be '{}'", CleanText(stored, 256),
                    CleanText(logical.name, 256), CleanText(name.key, 256)));
  } else if (entry.dtype != logical.dtype || entry.global_shape != logical.global_shape) {
    return absl::DataLossError(fmt::format(
        "tensor '{}': rank {} stored it with another type or shape than a rank before it",
        CleanText(stored, 256), rank));
  }
  return &entry;
}

absl::StatusOr<std::vector<DcpEntry>> EntryTable::Whole() && {
  std::vector<DcpEntry> whole;
  whole.reserve(entries_.size());
  for (auto& [key, stored_entry] : entries_) {
    if (absl::Status status = CheckWhole(stored_entry.second); !status.ok()) return status;
    whole.push_back(std::move(stored_entry.second));
  }
  return whole;
}

absl::StatusOr<std::vector<DcpEntry>> TensorEntries(std::span<const CopiedSlab> slabs,
                                                    const KeyMap& map) {
  const CopyNames names = NamesOf(slabs, map);
  EntryTable table;
  for (const CopiedSlab& slab : slabs) {
    if (absl::Status status = AddEmptyTensors(slab, names, table); !status.ok()) return status;
    std::vector<DcpEntry*> of_tensor(slab.manifest.tensors.size(), nullptr);
    for (size_t i = 0; i < slab.manifest.tensors.size(); ++i) {
      const TensorSpec spec = layout::ToLogical(slab.manifest.tensors[i]).spec;
      const auto entry = table.EntryOf(spec, names.Of(spec.name), slab.manifest.rank);
      if (!entry.ok()) return entry.status();
      of_tensor[i] = *entry;
    }
    for (const CopyItem& item : slab.plan.items) {
      const layout::Box box = LogicalBoxOf(slab.manifest.tensors[item.tensor], item.box);
      of_tensor[item.tensor]->chunks.push_back(
          {box.offset, box.extent, slab.file, item.at, item.archive_bytes});
    }
  }
  return std::move(table).Whole();
}

absl::StatusOr<std::vector<ValueEntry>> ValueEntries(std::span<const CopiedSlab> slabs,
                                                     const KeyMap& map) {
  const CopyNames names = NamesOf(slabs, map);
  Optimizers optimizers;
  std::vector<ValueEntry> entries;
  for (const CopiedSlab& slab : slabs) {
    if (slab.extras.empty()) continue;
    const absl::StatusOr<PlainDict> record = ReadTorchExtras(slab.extras);
    const absl::Status status = record.ok() ? optimizers.Add(*record) : record.status();
    // Those of another origin say nothing of optimizers.
    if (!status.ok() && !absl::IsNotFound(status)) {
      return absl::Status(status.code(),
                          fmt::format("rank {}: {}", slab.manifest.rank, status.message()));
    }
    entries.push_back({names.At({std::string("unreft"), fmt::format("rank{}", slab.manifest.rank),
                                 std::string("extras")}),
                       PlainValue{PlainTensor{Dtype::kUint8, {slab.extras.size()}, slab.extras}},
                       {}});
  }
  optimizers.AppendTo(names, entries);
  if (absl::Status status = AddSavedValues(slabs, names, entries); !status.ok()) return status;
  return entries;
}

}  // namespace unreft::durable
