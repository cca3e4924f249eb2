#include "smp/memory/segment_pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/slot_header.h"

namespace unreft::smp {
namespace {

constexpr SegmentKind kKinds[] = {SegmentKind::kSlot, SegmentKind::kGuard, SegmentKind::kStaging,
                                  SegmentKind::kDecoded};

std::string_view KindName(SegmentKind kind) {
  switch (kind) {
    case SegmentKind::kSlot:
      return "slot";
    case SegmentKind::kGuard:
      return "guard";
    case SegmentKind::kStaging:
      return "staging";
    case SegmentKind::kDecoded:
      return "decoded";
  }
  return "";
}

// Its maker died before it wrote a header.
bool IsUnwritten(std::span<const std::byte> bytes) {
  const auto head = bytes.first(std::min<size_t>(bytes.size(), kSegmentPage));
  return std::ranges::all_of(head, [](std::byte b) { return b == std::byte{0}; });
}

}  // namespace

SegmentPool::SegmentPool(Seams seams, const NodeOptions& options)
    : seams_(seams), options_(options) {
  for (const SegmentKind kind : kKinds) {
    populators_.try_emplace(kind, seams.executor, seams.work, options.populate_chunk_bytes);
  }
}

std::string SegmentPool::PrefixOf(SegmentKind kind) const {
  return fmt::format("{}{}", MemoryPrefix(options_), KindName(kind));
}

std::string SegmentPool::NameOf(SegmentId id) const {
  // There is one for all ranks.
  if (id.kind == SegmentKind::kStaging) return PrefixOf(id.kind);
  return fmt::format("{}{}", PrefixOf(id.kind), id.number);
}

absl::Status SegmentPool::Adopt(SegmentKind kind, Visit visit) {
  const std::string prefix = PrefixOf(kind);
  absl::StatusOr<std::vector<SegmentInfo>> left = seams_.segments.List(prefix);
  if (!left.ok()) return left.status();
  for (const SegmentInfo& info : *left) {
    absl::StatusOr<std::unique_ptr<Segment>> segment =
        seams_.segments.Open(info.name, Access::kReadWrite);
    const bool is_empty = absl::IsOutOfRange(segment.status());
    if (!segment.ok() && !is_empty) return segment.status();
    if (is_empty || IsUnwritten((*segment)->bytes())) {
      if (absl::Status status = seams_.segments.Remove(info.name); !status.ok()) return status;
      continue;
    }
    // The name has the number, so that also one with a corrupt header keeps others from having it.
    const SegmentId id{kind, std::strtoull(info.name.c_str() + prefix.size(), nullptr, 10)};
    Entry& entry = entries_[id];
    entry.segment = *std::move(segment);
    entry.populated_bytes = entry.segment->bytes().size();
    if (absl::Status status = visit(id, entry.segment); !status.ok()) return status;
  }
  return absl::OkStatus();
}

void SegmentPool::RemoveOld(SegmentKind kind) {
  absl::StatusOr<std::vector<SegmentInfo>> left = seams_.segments.List(PrefixOf(kind));
  if (!left.ok()) return;
  for (const SegmentInfo& segment : *left) (void)seams_.segments.Remove(segment.name);
}

SegmentId SegmentPool::Next(SegmentKind kind) const {
  SegmentId id{kind, 0};
  while (entries_.contains(id)) ++id.number;
  return id;
}

absl::StatusOr<std::shared_ptr<Segment>> SegmentPool::Make(SegmentId id, uint64_t bytes) {
  UNREFT_CHECK(!entries_.contains(id), "{} {} is there", KindName(id.kind), id.number);
  const std::string name = NameOf(id);
  absl::StatusOr<std::unique_ptr<Segment>> made = seams_.segments.Create(name, bytes);
  if (!made.ok()) return made.status();
  const uint64_t first = std::min<uint64_t>(bytes, kSegmentPage);
  if (absl::Status status = (*made)->Reserve(0, first); !status.ok()) {
    (void)seams_.segments.Remove(name);
    return status;
  }
  Entry& entry = entries_[id];
  entry.segment = *std::move(made);
  entry.populated_bytes = first;
  return entry.segment;
}

void SegmentPool::Populate(SegmentId id, absl::AnyInvocable<void(absl::Status)> done) {
  const std::shared_ptr<Segment> segment = entries_.at(id).segment;
  populators_.at(id.kind).Add(segment, [this, id, of = segment.get(), done = std::move(done)](
                                           absl::StatusOr<uint64_t> bytes) mutable {
    const auto entry = entries_.find(id);
    // Removed meanwhile; another may have its number.
    if (entry == entries_.end() || entry->second.segment.get() != of) return false;
    if (!bytes.ok()) {
      done(bytes.status());
      return false;
    }
    uint64_t& populated = entry->second.populated_bytes;
    populated = std::max(populated, *bytes);
    if (*bytes == of->bytes().size()) done(absl::OkStatus());
    return true;
  });
}

void SegmentPool::Remove(SegmentId id) {
  const auto entry = entries_.extract(id);
  if (entry.empty()) return;
  const std::string& name = entry.mapped().segment->name();
  if (absl::Status status = seams_.segments.Remove(name); !status.ok()) {
    seams_.log.Warn("segment {}: {}", name, status.message());
  }
}

MemoryUse SegmentPool::use(SegmentKind kind) const {
  MemoryUse use;
  for (const auto& [id, entry] : entries_) {
    if (id.kind != kind) continue;
    use.bytes += entry.segment->bytes().size();
    use.unpopulated += entry.segment->bytes().size() - entry.populated_bytes;
  }
  use.unpopulated -= std::min(use.unpopulated, populators_.at(kind).under_way());
  return use;
}

MemoryUse SegmentPool::use() const {
  MemoryUse all;
  for (const SegmentKind kind : kKinds) all = all + use(kind);
  return all;
}

absl::StatusOr<MemoryBudget> SegmentPool::Check(uint64_t more) const {
  return CountMemory(seams_.segments, options_, use(), more);
}

}  // namespace unreft::smp
