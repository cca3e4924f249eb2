#include "smp/job/ever_committed.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "base/format.h"

namespace unreft::smp {

EverCommittedQuestions::~EverCommittedQuestions() {
  for (const auto& [number, question] : questions_) executor_.Cancel(question.timer);
}

void EverCommittedQuestions::Ask(Coordinator::EverCommittedDone done) {
  const uint64_t number = ++last_;
  const TimerId timer =
      executor_.After(options_.call_timeout, [this, number] { Answer(number, WhyNotKnown()); });
  questions_[number] = {std::move(done), timer};
  if (store_.ready()) Follow();
}

void EverCommittedQuestions::Follow() {
  while (!questions_.empty()) Answer(questions_.begin()->first, EverCommitted());
}

// By the store, or by what this node has kept if the store was lost and nobody has told it yet.
bool EverCommittedQuestions::EverCommitted() const {
  return store_.state().commit.value.world() != 0 || kept_.records().commit.value.world() != 0;
}

absl::Status EverCommittedQuestions::WhyNotKnown() const {
  return absl::UnavailableError(fmt::format(
      "node {}: whether anything was ever committed is not known, since the meta store was not "
      "read within {} ms: {}",
      options_.node, options_.call_timeout / std::chrono::milliseconds(1),
      store_.status().ok() ? "it does not answer" : std::string(store_.status().message())));
}

void EverCommittedQuestions::Answer(uint64_t number, absl::StatusOr<bool> answer) {
  auto question = questions_.extract(number);
  executor_.Cancel(question.mapped().timer);
  executor_.Post([done = std::move(question.mapped().done), answer = std::move(answer)]() mutable {
    done(std::move(answer));
  });
}

}  // namespace unreft::smp
