#include "smp/memory/page_populator.h"

#include <algorithm>
#include <utility>

namespace unreft::smp {

void PagePopulator::Add(std::shared_ptr<Segment> segment, OnChunk on_chunk) {
  items_.push_back({std::move(segment), 0, std::move(on_chunk)});
  if (items_.size() == 1) RunNext();
}

uint64_t PagePopulator::LengthOfNext() const {
  const Item& item = items_.front();
  return std::min<uint64_t>(chunk_bytes_, item.segment->bytes().size() - item.bytes);
}

void PagePopulator::RunNext() {
  if (items_.empty()) return;
  const std::shared_ptr<Segment>& segment = items_.front().segment;
  const uint64_t begin = items_.front().bytes;
  const uint64_t length = LengthOfNext();
  auto status = std::make_shared<absl::Status>();  // passes from the pool to the executor
  pool_.Submit([segment, begin, length, status] { *status = segment->Reserve(begin, length); },
               executor_, lifetime_.Bind([this, length, status] { OnReserved(length, *status); }));
}

void PagePopulator::OnReserved(uint64_t bytes, const absl::Status& status) {
  Item& item = items_.front();
  item.bytes += bytes;
  const bool is_over = !status.ok() || item.bytes == item.segment->bytes().size();
  // It may add others.
  const bool is_wanted =
      status.ok() ? item.on_chunk(item.bytes) : item.on_chunk(absl::StatusOr<uint64_t>(status));
  if (is_over || !is_wanted) items_.pop_front();
  RunNext();
}

}  // namespace unreft::smp
