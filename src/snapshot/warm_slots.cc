#include "snapshot/warm_slots.h"

#include <algorithm>
#include <utility>

namespace unreft::snapshot {

void WarmSlots::Expect(std::vector<WireSlot> slots) {
  next_.reset();
  expected_.assign(std::make_move_iterator(slots.begin()), std::make_move_iterator(slots.end()));
}

bool WarmSlots::MapSome(uint64_t bytes) {
  if (!next_ && !OpenNext()) return !expected_.empty();
  if (!next_->slot.StillThere().ok()) {
    LetGo(std::exchange(next_, std::nullopt)->slot.mapping()->name());
    return !expected_.empty();
  }
  const uint64_t length = std::min(bytes, next_->slot.end() - next_->populated);
  next_->slot.mapping()->Populate(next_->populated, length);
  next_->populated += length;
  if (next_->populated == next_->slot.end()) next_.reset();
  return next_ || !expected_.empty();
}

void WarmSlots::LetGo(const std::string& name) {
  std::shared_ptr<Segment> mapping;
  std::lock_guard lock(mutex_);
  mapping = std::move(mappings_[name]);
  mappings_.erase(name);
}

// Opens the first that is expected; false when it cannot be.
bool WarmSlots::OpenNext() {
  if (expected_.empty()) return false;
  absl::StatusOr<SealedSlot> slot = Open(expected_.front());
  expected_.pop_front();
  if (slot.ok()) next_.emplace(*std::move(slot));
  return slot.ok();
}

absl::StatusOr<SealedSlot> WarmSlots::Open(const WireSlot& where) {
  absl::StatusOr<SealedSlot> slot = SealedSlot::Open(store_, where);
  if (!slot.ok()) return slot;
  std::lock_guard lock(mutex_);
  std::shared_ptr<Segment>& mapping = mappings_[where.segment];
  if (mapping != nullptr && slot->ReadFrom(mapping)) return slot;
  if (mapping != nullptr) outdated_.push_back(std::move(mapping));
  mapping = slot->mapping();
  return slot;
}

void WarmSlots::Clear() {
  Expect({});
  std::map<std::string, std::shared_ptr<Segment>> mappings;
  std::vector<std::shared_ptr<Segment>> outdated;
  std::lock_guard lock(mutex_);
  mappings.swap(mappings_);
  outdated.swap(outdated_);
}

size_t WarmSlots::mapped() const {
  std::lock_guard lock(mutex_);
  return mappings_.size();
}

}  // namespace unreft::snapshot
