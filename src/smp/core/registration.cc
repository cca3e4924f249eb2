#include "smp/core/registration.h"

namespace unreft::smp {

layout::SlotManifest ManifestOf(const Registration& registration) {
  layout::SlotManifest manifest;
  manifest.layout_digest = registration.plan.digest();
  manifest.capture_mode = registration.plan.mode();
  const auto specs = registration.table.specs();
  const auto parts = registration.plan.parts();
  manifest.tensors.assign(specs.begin(), specs.end());
  manifest.parts.assign(parts.begin(), parts.end());
  return manifest;
}

}  // namespace unreft::smp
