// The daemon's metrics in Prometheus' text format, from its counters.
#include <fmt/format.h>

#include "smp/admin.h"

namespace unreft::smp {
namespace {

void Append(std::string& text, std::string_view name, std::string_view type, std::string_view help,
            uint64_t value) {
  text += fmt::format("# HELP unreft_{0} {1}\n# TYPE unreft_{0} {2}\nunreft_{0} {3}\n", name, help,
                      type, value);
}

}  // namespace

std::string MetricsText(const NodeState& state) {
  const NodeCounters& c = state.counters;
  std::string text;
  const auto counter = [&](auto name, auto help, uint64_t value) {
    Append(text, name, "counter", help, value);
  };
  const auto gauge = [&](auto name, auto help, uint64_t value) {
    Append(text, name, "gauge", help, value);
  };
  counter("slots_sealed_total", "Slots sealed.", c.versions_sealed);
  counter("sealed_bytes_total", "Bytes of data sealed.", c.bytes_sealed);
  counter("versions_committed_total", "Versions committed by all ranks.", c.versions_committed);
  counter("versions_abandoned_total", "Versions given up.", c.versions_abandoned);
  counter("snapshots_skipped_total", "Snapshots that a rank skipped.", c.snapshots_skipped);
  counter("decisions_total", "Recovery decisions.", c.decisions);
  counter("decisions_failed_total", "Recovery decisions that restored nothing.",
          c.decisions_failed);
  counter("sessions_refused_total", "Sessions refused.", c.sessions_refused);
  counter("slots_quarantined_total", "Slots that did not verify.", state.slots->quarantined());
  counter("record_writes_failed_total", "Records that could not be written.",
          state.record->failed_writes());
  gauge("slot_bytes", "Shared memory held by slots.", state.slots->bytes());
  gauge("sessions", "Trainers known.", state.sessions.size());
  gauge("timeline", "Newest timeline.", state.record->chain().newest().value);
  gauge("committed_step", "Step of the newest committed version.",
        state.record->committed().step.value);
  return text;
}

}  // namespace unreft::smp
