// The daemon's metrics in Prometheus' text format, from its counters.
#include <limits>

#include "base/metrics.h"
#include "smp/admin.h"
#include "smp/protection_watch.h"

namespace unreft::smp {
namespace {

constexpr double kNotANumber = std::numeric_limits<double>::quiet_NaN();

}  // namespace

std::string MetricsText(const NodeState& state) {
  const NodeCounters& c = state.counters;
  Metrics metrics;
  const auto count = [&](const char* name, const char* help, uint64_t value) {
    metrics.NewCounter(name, help).Add(static_cast<double>(value));
  };
  const auto gauge = [&](const char* name, const char* help, uint64_t value) {
    metrics.NewGauge(name, help).Set(static_cast<double>(value));
  };
  count("unreft_slots_sealed_total", "Slots sealed.", c.slots_sealed);
  count("unreft_sealed_bytes_total", "Bytes of data sealed.", c.bytes_sealed);
  count("unreft_versions_committed_total", "Versions committed by all ranks.",
        c.versions_committed);
  count("unreft_versions_abandoned_total", "Versions given up.", c.versions_abandoned);
  count("unreft_snapshots_skipped_total", "Snapshots that a rank skipped.", c.snapshots_skipped);
  count("unreft_decisions_total", "Recovery decisions.", c.decisions);
  count("unreft_decisions_failed_total", "Recovery decisions that restored nothing.",
        c.decisions_failed);
  count("unreft_sessions_refused_total", "Sessions refused.", c.sessions_refused);
  count("unreft_slots_quarantined_total", "Slots that did not verify.", state.slots->quarantined());
  count("unreft_device_checksum_mismatches_total",
        "Snapshots given up since a block was not what the device had.",
        c.device_checksum_mismatches);
  count("unreft_record_writes_failed_total", "Records that could not be written.",
        state.record->failed_writes());
  gauge("unreft_records_unwritten",
        "1: the disk of the run directory does not take what was committed.",
        state.record->problem().empty() ? 0 : 1);
  if (const TransportCounts* counts = state.seams.transport_counts) {
    count("unreft_node_read_bytes_total", "Bytes read from other nodes.", counts->reads.bulk_bytes);
    count("unreft_node_read_bytes_lost_total", "Bytes of reads that failed and were made again.",
          counts->reads.bulk_bytes_lost);
    count("unreft_node_reads_failed_total", "Reads from other nodes that failed.",
          counts->reads.failed());
    count("unreft_node_served_bytes_total", "Bytes read by other nodes.",
          counts->reads_served.bulk_bytes);
  }
  gauge("unreft_slot_bytes", "Shared memory held by slots.", state.slots->use().bytes);
  gauge("unreft_guard_bytes", "Shared memory held by guards.", state.slots->guards().now.bytes);
  gauge("unreft_staging_bytes", "Shared memory held for what restores get from other nodes.",
        state.staging->use().bytes);
  gauge("unreft_insecure", "1: talks by TCP without TLS (--insecure).",
        state.options.insecure.empty() ? 0 : 1);
  const CertificateHealth certificates =
      state.seams.certificates ? state.seams.certificates() : CertificateHealth{};
  metrics
      .NewGauge("unreft_tls_certificate_expiry_seconds",
                "Until the first of the certificates in use expires; NaN: no TLS.")
      .Set(certificates.seconds_left.value_or(kNotANumber));
  gauge("unreft_tls_files_refused",
        "1: TLS files that lie there now were refused, and older ones stay in use.",
        certificates.files_are_bad ? 1 : 0);
  gauge("unreft_sessions", "Trainers known.", state.sessions.size());
  gauge("unreft_timeline", "Newest timeline.", state.record->chain().newest().value);
  gauge("unreft_committed_step", "Step of the newest committed version.",
        state.record->committed().step.value);
  // Of a job that does not run neither yes nor no, so that an alert on either is not raised.
  const JobProtection protection = ProtectionOf(state);
  const bool runs = protection.phase == JobPhase::kRunning;
  metrics
      .NewGauge("unreft_protected",
                "1: what the job trains is protected; 0: it is not; NaN: no job runs.")
      .Set(runs ? static_cast<double>(protection.protecting) : kNotANumber);
  metrics
      .NewGauge("unreft_seconds_since_commit",
                "Since the newest commit, or the restore if that is newer; NaN: nothing is "
                "committed yet, or no job runs.")
      .Set(protection.since_commit ? std::chrono::duration<double>(*protection.since_commit).count()
                                   : kNotANumber);
  return metrics.Text();
}

}  // namespace unreft::smp
