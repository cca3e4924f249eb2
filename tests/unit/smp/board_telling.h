// A report comes to the board as its node has sent it.
#pragma once

#include <string>

#include "base/check.h"
#include "smp/job/board.h"
#include "smp/job/report_parts.h"

namespace unreft::smp {

inline absl::Status TryTellBoard(Board& board, NodeSlot slot, const NodeReport& report) {
  const std::string encoded = report.SerializeAsString();
  ReportParts parts;
  UNREFT_CHECK(CutReport(encoded, parts), "a report can be read");
  return board.Take(slot, parts);
}

inline void TellBoard(Board& board, NodeSlot slot, const NodeReport& report) {
  const absl::Status status = TryTellBoard(board, slot, report);
  UNREFT_CHECK(status.ok(), "{}", status.message());
}

}  // namespace unreft::smp
