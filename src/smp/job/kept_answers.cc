#include "smp/job/kept_answers.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

#include "base/crc32c.h"

namespace unreft::smp {

std::optional<std::string> KeptAnswers::Find(const Question& question, const PageWish& wish) {
  if (wish.offset() == 0 || wish.bytes_max() == 0) return std::nullopt;
  const auto found = kept_.find({question, wish.whole_bytes(), wish.whole_crc()});
  if (found == kept_.end() || wish.offset() >= wish.whole_bytes()) return std::nullopt;
  found->second.used = executor_.Now();
  return PageOf(found->second.answer, wish.whole_crc(), wish.offset(), wish.bytes_max());
}

absl::StatusOr<std::string> KeptAnswers::Take(const Question& question, const PageWish& wish,
                                              std::string answer) {
  if (wish.bytes_max() == 0) {
    return absl::InvalidArgumentError(
        fmt::format("a page of '{}' of no bytes was asked for", question.method));
  }
  const uint64_t bytes = answer.size();
  const uint32_t crc = Crc32c(std::as_bytes(std::span(answer)));
  const bool is_same = bytes == wish.whole_bytes() && crc == wish.whole_crc();
  // Of another one the beginning is of use, and no other part.
  const uint64_t offset = is_same && wish.offset() < bytes ? wish.offset() : 0;
  std::string page = PageOf(answer, crc, offset, wish.bytes_max());
  if (bytes - offset > wish.bytes_max()) Keep({question, bytes, crc}, std::move(answer));
  return page;
}

uint64_t KeptAnswers::BytesOf(const Key& key, const std::string& answer) {
  const Question& question = std::get<Question>(key);
  return question.method.size() + question.body.size() + answer.size();
}

std::string KeptAnswers::PageOf(const std::string& answer, uint32_t crc, uint64_t offset,
                                uint64_t bytes_max) {
  Page page;
  page.set_whole_crc(crc);
  page.set_whole_bytes(answer.size());
  page.set_offset(offset);
  page.set_bytes(answer.substr(offset, bytes_max));
  return page.SerializeAsString();
}

void KeptAnswers::Keep(const Key& key, std::string answer) {
  if (const auto same = kept_.find(key); same != kept_.end()) Forget(same);
  const uint64_t bytes = BytesOf(key, answer);
  // The newest one is kept in any case: who has asked for it asks on.
  while (!kept_.empty() &&
         (kept_bytes_ + bytes > limits_.kept_bytes_max || kept_.size() >= kAnswersMax)) {
    Forget(LongestUnused());
  }
  kept_bytes_ += bytes;
  kept_[key] = {std::move(answer), executor_.Now()};
  if (std::exchange(is_timed_, true)) return;
  executor_.After(limits_.kept_for, lifetime_.Bind([this] { ForgetUnused(); }));
}

void KeptAnswers::Forget(std::map<Key, Kept>::iterator kept) {
  kept_bytes_ -= BytesOf(kept->first, kept->second.answer);
  kept_.erase(kept);
}

void KeptAnswers::ForgetUnused() {
  is_timed_ = false;
  const Time now = executor_.Now();
  for (auto it = kept_.begin(); it != kept_.end();) {
    const auto kept = it++;
    if (now - kept->second.used >= limits_.kept_for) Forget(kept);
  }
  if (kept_.empty()) return;
  is_timed_ = true;
  const Time next = LongestUnused()->second.used + limits_.kept_for;
  executor_.After(next - now, lifetime_.Bind([this] { ForgetUnused(); }));
}

std::map<KeptAnswers::Key, KeptAnswers::Kept>::iterator KeptAnswers::LongestUnused() {
  return std::ranges::min_element(kept_, {}, [](const auto& entry) { return entry.second.used; });
}

}  // namespace unreft::smp
