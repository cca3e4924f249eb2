// KeptAnswers: the answers of this node that others take page by page (docs/protocol.md, rule 33).
//
// An answer is kept for its next pages for a few seconds: else it would be made anew for each,
// which is work by the square of its size, and one to `verify` reads all of a version. All who ask
// the same share it. An answer that is kept no more is made anew, and who asks sees by its size and
// CRC whether it is the same; one to `verify` never is. A first page is always of a new one.
#pragma once

#include <absl/status/statusor.h>
#include <unreft/cluster.pb.h>

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>

#include "base/executor.h"
#include "base/lifetime.h"
#include "smp/job/paged_answer.h"

namespace unreft::smp {

// Single-threaded on the node's executor. Questions are those with the same method and body; who
// asks makes no difference.
class KeptAnswers {
 public:
  struct Question {
    std::string method;
    std::string body;
    friend auto operator<=>(const Question&, const Question&) = default;
  };

  KeptAnswers(Executor& executor, const PageLimits& limits)
      : executor_(executor), limits_(limits) {}

  // The page, encoded, if the answer that the wish names is kept.
  std::optional<std::string> Find(const Question& question, const PageWish& wish);

  // The page, encoded, of an answer that was just made. InvalidArgument for a wish that names none.
  absl::StatusOr<std::string> Take(const Question& question, const PageWish& wish,
                                   std::string answer);

  // Of the answers and of the questions that they are kept under, which may be as large.
  uint64_t kept_bytes() const { return kept_bytes_; }

 private:
  // Many small ones cost more than their bytes.
  static constexpr size_t kAnswersMax = 1024;

  using Key = std::tuple<Question, uint64_t, uint32_t>;  // with the answer's size and CRC
  struct Kept {
    std::string answer;
    Time used;
  };

  static uint64_t BytesOf(const Key& key, const std::string& answer);
  static std::string PageOf(const std::string& answer, uint32_t crc, uint64_t offset,
                            uint64_t bytes_max);
  void Keep(const Key& key, std::string answer);
  std::map<Key, Kept>::iterator LongestUnused();
  void Forget(std::map<Key, Kept>::iterator kept);
  void ForgetUnused();

  Executor& executor_;
  const PageLimits limits_;
  std::map<Key, Kept> kept_;
  uint64_t kept_bytes_ = 0;
  bool is_timed_ = false;
  Lifetime lifetime_;
};

}  // namespace unreft::smp
