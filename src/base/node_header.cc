#include "base/node_header.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/bounds.h"
#include "base/slot_header.h"

namespace unreft {
namespace {

NodeBody Load(std::span<const std::byte> bytes, size_t index) {
  NodeBody body;
  std::memcpy(&body, bytes.data() + index * sizeof(NodeBody), sizeof(body));
  return body;
}

bool IsWithinBounds(const NodeBody& body) {
  return body.committed_timeline <= kTimelineMax && body.committed_step <= kStepMax &&
         body.committed_world <= kRanksMax &&
         std::ranges::all_of(body.decision, [](const DecisionEntry& entry) {
           return entry.timeline <= kTimelineMax && entry.parent_timeline <= kTimelineMax &&
                  entry.parent_step <= kStepMax;
         });
}

// Across the largest number, too: what a body says of its own is any number.
bool IsNewer(const NodeBody& body, const NodeBody& other) {
  return static_cast<int64_t>(body.sequence - other.sequence) > 0;
}

bool IsValid(const NodeBody& body) {
  return body.magic == kNodeMagic && BodyCrcIsRight(body) && body.decisions <= kDecisionsKept &&
         IsWithinBounds(body);
}

}  // namespace

absl::StatusOr<NodeBody> ReadNodeBody(std::span<const std::byte> bytes) {
  if (bytes.size() < sizeof(NodeHeader)) {
    return absl::DataLossError(
        fmt::format("node segment: needed {} bytes, found {}", sizeof(NodeHeader), bytes.size()));
  }
  const NodeBody first = Load(bytes, 0);
  const NodeBody second = Load(bytes, 1);
  for (const NodeBody& body : {first, second}) {
    // Of a body that does not verify the number may be a bit that has turned.
    if (body.magic == kNodeMagic && BodyCrcIsRight(body) && body.min_reader > kNodeFormat) {
      return absl::FailedPreconditionError(fmt::format(
          "node segment: written in format {} for readers of {} and up, this reader knows {}",
          body.format, body.min_reader, kNodeFormat));
    }
  }
  if (!IsValid(first) && !IsValid(second)) {
    return absl::DataLossError("node segment: neither of its two bodies is valid");
  }
  if (!IsValid(second)) return first;
  if (!IsValid(first)) return second;
  return IsNewer(first, second) ? first : second;
}

void WriteNodeBody(std::span<std::byte> bytes, NodeBody body) {
  const NodeBody first = Load(bytes, 0);
  const NodeBody second = Load(bytes, 1);
  const bool keeps_first = IsValid(first) && (!IsValid(second) || IsNewer(first, second));
  const size_t older = keeps_first ? 1 : 0;
  const uint64_t newest =
      keeps_first ? first.sequence : (IsValid(second) ? second.sequence : uint64_t{0});
  body.sequence = newest + 1;
  SetBodyCrc(body);
  std::memcpy(bytes.data() + older * sizeof(NodeBody), &body, sizeof(body));
}

}  // namespace unreft
