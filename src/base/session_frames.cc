#include "base/session_frames.h"

namespace unreft {

std::string_view FrameTypeName(FrameType type) {
  switch (type) {
    case FrameType::kHello:
      return "Hello";
    case FrameType::kWelcome:
      return "Welcome";
    case FrameType::kRefused:
      return "Refused";
    case FrameType::kRestoreRequest:
      return "RestoreRequest";
    case FrameType::kDecision:
      return "Decision";
    case FrameType::kPlanRequest:
      return "PlanRequest";
    case FrameType::kPlan:
      return "Plan";
    case FrameType::kRestoreDone:
      return "RestoreDone";
    case FrameType::kRegister:
      return "Register";
    case FrameType::kRegistered:
      return "Registered";
    case FrameType::kClaimed:
      return "Claimed";
    case FrameType::kProgress:
      return "Progress";
    case FrameType::kCaptured:
      return "Captured";
    case FrameType::kSkipped:
      return "Skipped";
    case FrameType::kGaveUp:
      return "GaveUp";
    case FrameType::kVersionState:
      return "VersionState";
    case FrameType::kAdminRequest:
      return "AdminRequest";
    case FrameType::kAdminReply:
      return "AdminReply";
  }
  return "frame";
}

}  // namespace unreft
