// BudgetLog: the line of the log that says what memory a node has promised to its ranks.
#pragma once

#include <string>

#include "smp/desk/node_state.h"

namespace unreft::smp {

// Single-threaded on the node's executor.
class BudgetLog {
 public:
  explicit BudgetLog(NodeState& state) : state_(state) {}
  ~BudgetLog() { state_.seams.executor.Cancel(timer_); }
  BudgetLog(const BudgetLog&) = delete;
  BudgetLog& operator=(const BudgetLog&) = delete;

  // A rank has registered. It is told once no more of them have come for a while, and only if it is
  // not what was told last.
  void TellSoon();

 private:
  void Tell();

  NodeState& state_;
  TimerId timer_ = TimerId::kNone;
  std::string told_;
};

}  // namespace unreft::smp
