#include "smp/job/paged_answer.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

#include "base/crc32c.h"

namespace unreft::smp {

PageWish PagedAnswer::Wish() const {
  PageWish wish;
  wish.set_offset(bytes_.size());
  wish.set_bytes_max(limits_.page_bytes);
  wish.set_whole_bytes(whole_bytes_);
  wish.set_whole_crc(whole_crc_);
  return wish;
}

absl::StatusOr<bool> PagedAnswer::Take(std::string reply) {
  Page page;
  if (!page.ParseFromString(reply) || !page.has_whole_crc()) {
    bytes_ = std::move(reply);
    return true;
  }
  const bool is_another =
      !has_begun_ || page.whole_bytes() != whole_bytes_ || page.whole_crc() != whole_crc_;
  if (is_another) {
    if (absl::Status status = Begin(page); !status.ok()) return status;
  }
  const uint64_t needed = std::min(limits_.page_bytes, whole_bytes_ - bytes_.size());
  const uint64_t found = page.bytes().size();
  if (page.offset() != bytes_.size() || found > needed || (found == 0 && needed > 0)) {
    return absl::InvalidArgumentError(fmt::format("a page of {} bytes at {} of {}, needed {} at {}",
                                                  found, page.offset(), whole_bytes_, needed,
                                                  bytes_.size()));
  }
  bytes_ += page.bytes();
  if (bytes_.size() < whole_bytes_) return false;
  const uint32_t crc = Crc32c(std::as_bytes(std::span(bytes_)));
  if (crc == whole_crc_) return true;
  return absl::DataLossError(fmt::format("the {} bytes of all pages have CRC {:08x}, needed {:08x}",
                                         whole_bytes_, crc, whole_crc_));
}

std::string PagedAnswer::Progress() const {
  return fmt::format("{} of {} bytes", bytes_.size(), whole_bytes_);
}

absl::Status PagedAnswer::Begin(const Page& page) {
  if (page.whole_bytes() > limits_.answer_bytes_max) {
    return absl::ResourceExhaustedError(
        fmt::format("the answer has {} bytes, answer_bytes_max is {}", page.whole_bytes(),
                    limits_.answer_bytes_max));
  }
  if (has_begun_ && ++changes_ > kChangesMax) {
    return absl::UnavailableError(
        fmt::format("the answer was another one {} times before all its pages had come", changes_));
  }
  has_begun_ = true;
  whole_bytes_ = page.whole_bytes();
  whole_crc_ = page.whole_crc();
  bytes_.clear();
  return absl::OkStatus();
}

}  // namespace unreft::smp
