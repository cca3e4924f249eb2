#include "base/session_frames.h"

#include <utility>

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
    case FrameType::kStaged:
      return "Staged";
    case FrameType::kStagedDone:
      return "StagedDone";
    case FrameType::kEverCommittedRequest:
      return "EverCommittedRequest";
    case FrameType::kEverCommitted:
      return "EverCommitted";
    case FrameType::kObstacle:
      return "Obstacle";
    case FrameType::kPlanPage:
      return "PlanPage";
    case FrameType::kExtrasRequest:
      return "ExtrasRequest";
    case FrameType::kExtras:
      return "Extras";
  }
  return "frame";
}

std::vector<WireTensor> ToWire(std::span<const TensorSpec> specs) {
  std::vector<WireTensor> tensors;
  tensors.reserve(specs.size());
  for (const TensorSpec& spec : specs) tensors.push_back({spec});
  return tensors;
}

std::vector<TensorSpec> FromWire(std::vector<WireTensor> tensors) {
  std::vector<TensorSpec> specs;
  specs.reserve(tensors.size());
  for (WireTensor& tensor : tensors) specs.push_back(std::move(tensor.spec));
  return specs;
}

}  // namespace unreft
