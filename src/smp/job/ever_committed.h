// EverCommittedQuestions: who asks whether anything was ever committed, before that is known.
#pragma once

#include <absl/functional/any_invocable.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <map>
#include <utility>

#include "base/executor.h"
#include "smp/job/coordinator.h"

namespace unreft::smp {

// Single-threaded on the node's executor.
class EverCommittedQuestions {
 public:
  // `why_not` is what is answered to a question that has waited for so long.
  EverCommittedQuestions(Executor& executor, Duration timeout,
                         absl::AnyInvocable<absl::Status()> why_not)
      : executor_(executor), timeout_(timeout), why_not_(std::move(why_not)) {}
  ~EverCommittedQuestions() {
    for (const auto& [number, question] : questions_) executor_.Cancel(question.timer);
  }

  void Ask(Coordinator::EverCommittedDone done) {
    const uint64_t number = ++last_;
    const TimerId timer =
        executor_.After(timeout_, [this, number] { Answer(number, why_not_()); });
    questions_[number] = {std::move(done), timer};
  }
  void AnswerAll(bool ever) {
    while (!questions_.empty()) Answer(questions_.begin()->first, ever);
  }

 private:
  struct Question {
    Coordinator::EverCommittedDone done;
    TimerId timer = TimerId::kNone;
  };

  void Answer(uint64_t number, absl::StatusOr<bool> answer) {
    auto question = questions_.extract(number);
    executor_.Cancel(question.mapped().timer);
    executor_.Post([done = std::move(question.mapped().done),
                    answer = std::move(answer)]() mutable { done(std::move(answer)); });
  }

  Executor& executor_;
  const Duration timeout_;
  absl::AnyInvocable<absl::Status()> why_not_;
  std::map<uint64_t, Question> questions_;
  uint64_t last_ = 0;
};

}  // namespace unreft::smp
