#include "base/control_page.h"

#include <fmt/format.h>

#include <atomic>

namespace unreft {

ControlPage& FormatControlPage(std::span<std::byte> bytes, Rank rank) {
  auto* page = reinterpret_cast<ControlPage*>(bytes.data());
  page->format = kControlFormat;
  page->min_reader = kControlMinReader;
  page->rank = rank.value;
  // Last: a writer killed before this store leaves a page that was never written.
  std::atomic_signal_fence(std::memory_order_release);
  page->magic = kControlMagic;
  return *page;
}

absl::StatusOr<ControlPage*> CheckControlPage(std::span<std::byte> bytes, Rank rank) {
  if (bytes.size() < sizeof(ControlPage)) {
    return absl::DataLossError(fmt::format("control page of rank {}: needed {} bytes, found {}",
                                           rank, sizeof(ControlPage), bytes.size()));
  }
  auto* page = reinterpret_cast<ControlPage*>(bytes.data());
  if (page->magic != kControlMagic || page->rank != rank.value) {
    return absl::DataLossError(
        fmt::format("control page: needed magic {:016x} and rank {}, found {:016x} and {}",
                    kControlMagic, rank, page->magic, page->rank));
  }
  if (page->min_reader > kControlFormat) {
    return absl::FailedPreconditionError(
        fmt::format("control page of rank {}: written in format {} for readers of {} and up, this "
                    "reader knows {}",
                    rank, page->format, page->min_reader, kControlFormat));
  }
  return page;
}

}  // namespace unreft
