// PagedAnswer: an answer of another node as it comes, page by page (docs/protocol.md, rule 33).
//
//   asker ── request, PageWish{offset 0}              ──▶ the answer is made
//         ◀── Page{size and CRC of the whole, bytes}  ──
//         ── the same request, PageWish{offset, which}──▶ it is kept (KeptAnswers), or made anew
//         ◀── Page{the same size and CRC, bytes}      ──   and so on
//
// A page of another answer than the first one's begins it anew. What comes back of a daemon of an
// earlier release is no page, but the whole.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <unreft/cluster.pb.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

#include "base/executor.h"

namespace unreft::smp {

struct PageLimits {
  uint64_t page_bytes = uint64_t{8} << 20;        // asked for at a time; not 0
  uint64_t answer_bytes_max = uint64_t{1} << 30;  // of an answer that is asked for
  uint64_t kept_bytes_max = uint64_t{256} << 20;  // of all that are kept for their next page
  Duration kept_for = std::chrono::seconds(5);    // since the last page
};

class PagedAnswer {
 public:
  // How often an answer may be another one before all of it has come. Each time, what has come is
  // of no use; who asks has a pause of its own to try again after.
  static constexpr uint32_t kChangesMax = 4;

  explicit PagedAnswer(const PageLimits& limits) : limits_(limits) {}

  // What is to be asked for next.
  PageWish Wish() const;

  // What came of it: as many bytes as were asked for, or fewer. Whether the answer is whole now.
  // ResourceExhausted for one beyond the limit, InvalidArgument for a page that was not asked for,
  // DataLoss for bytes that are not those that were named, Unavailable for one that does not stay
  // the same. No more may be taken after a failure.
  absl::StatusOr<bool> Take(std::string reply);

  std::string TakeWhole() { return std::move(bytes_); }
  // For an error: "3 of 25 bytes".
  std::string Progress() const;

 private:
  absl::Status Begin(const Page& page);

  const PageLimits limits_;
  bool has_begun_ = false;
  uint64_t whole_bytes_ = 0;
  uint32_t whole_crc_ = 0;
  uint32_t changes_ = 0;
  // Of the answer's beginning. It grows with what comes, and not by what the peer says.
  std::string bytes_;
};

}  // namespace unreft::smp
