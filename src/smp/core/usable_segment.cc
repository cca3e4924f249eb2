#include "smp/core/usable_segment.h"

namespace unreft::smp {

absl::StatusOr<std::unique_ptr<Segment>> OpenUsable(SegmentStore& segments,
                                                    const std::string& name) {
  absl::StatusOr<std::unique_ptr<Segment>> segment = segments.Open(name, Access::kReadWrite);
  if (absl::IsPermissionDenied(segment.status())) return absl::NotFoundError(name);
  if (!absl::IsOutOfRange(segment.status())) return segment;
  if (absl::Status status = segments.Remove(name); !status.ok()) return status;
  return absl::NotFoundError(name);
}

}  // namespace unreft::smp
