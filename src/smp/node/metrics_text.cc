// The daemon's metrics in Prometheus' text format, from its counters.
#include <fmt/format.h>

#include <limits>
#include <map>
#include <optional>
#include <string>

#include "base/format.h"
#include "base/metrics.h"
#include "smp/desk/protection_watch.h"
#include "smp/job/formation.h"
#include "smp/node/admin.h"

namespace unreft::smp {
namespace {

constexpr double kNotANumber = std::numeric_limits<double>::quiet_NaN();

Metrics::Labels LabelsOf(const NodeOptions& options) {
  return {{"job", options.job}, {"node", fmt::format("{}", options.node)}};
}

// What is known of the other nodes: by the records of the meta store, and of the groups by the
// leader, which has all nodes' reports.
void AddCluster(const NodeState& state, const Member& member, Metrics& metrics) {
  const meta::JobState& job = member.job();
  const auto gauge = [&](const char* name, const char* help, double value,
                         const Metrics::Labels& labels = {}) {
    metrics.NewGauge(name, help, labels).Set(value);
  };
  gauge("unreft_store_reachable", "1: the meta store answers; 0: it does not, or has not yet.",
        member.store_ready() && member.store_status().ok() ? 1 : 0);
  const std::optional<uint64_t> store_bytes =
      state.seams.store_bytes ? state.seams.store_bytes() : std::nullopt;
  gauge("unreft_store_bytes",
        "Size of the meta store's database, in bytes; NaN: it does not say, as an embedded one.",
        store_bytes ? static_cast<double>(*store_bytes) : kNotANumber);
  gauge("unreft_leader", "1: this node leads the job.", member.leads() ? 1 : 0);
  gauge("unreft_counted", "1: what this node holds counts in the job; 0: it is out, or waits.",
        state.standing.problem.empty() ? 1 : 0);
  std::map<std::string, int> members{{"present", 0}, {"absent", 0}, {"lost", 0}, {"left_out", 0}};
  for (const ViewMember& known : job.view.value.members()) {
    const NodeSlot slot{known.slot()};
    const bool is_present = job.present.contains(slot);
    ++members[IsLeftOut(job.view.value, slot) ? "left_out"
              : known.lost()                  ? "lost"
              : is_present                    ? "present"
                                              : "absent"];
  }
  for (const auto& [name, count] : members) {
    gauge("unreft_members", "Node slots by state, as this node knows the job.", count,
          {{"state", name}});
  }
  gauge("unreft_spares", "Spares that wait for a slot, as this node knows the job.",
        static_cast<double>(job.spares.size()));
  const std::optional<ExposureReply> exposure = member.OwnExposure();
  if (!exposure || exposure->world() == 0) return;
  for (int i = 0; i < exposure->groups_size(); ++i) {
    gauge("unreft_group_stands",
          "Losses of nodes that the group stands, by what it holds of the committed version; of "
          "the leader alone.",
          exposure->groups(i).stands(), {{"group", fmt::format("{}", i)}});
  }
}

void AddSpare(double is_one, Metrics& metrics) {
  metrics.NewGauge("unreft_spare", "1: it waits for the slot of a lost node.").Set(is_one);
}

// Of whoever leads; of another node the age is not a number.
void AddExports(const ExportDesk& exports, Metrics& metrics) {
  metrics.NewCounter("unreft_exports_total", "Durable copies that this node has run to their end.")
      .Add(static_cast<double>(exports.made()));
  metrics
      .NewCounter(
          "unreft_exports_failed_total",
          "Durable copies that this node has run in vain, and looks at export_dir that failed.")
      .Add(static_cast<double>(exports.failed()));
  const OwnCopies& own = exports.own();
  if (own.policy().directory.empty()) return;
  const std::optional<OwnCopies::Newest>& newest = own.newest();
  const bool is_known = newest && newest->version != Version{};
  metrics
      .NewGauge("unreft_durable_copy_age_seconds",
                "Since the newest durable copy was ordered; NaN: there is none, or this node does "
                "not lead.")
      .Set(is_known ? std::chrono::duration<double>(own.AgeOf(*newest)).count() : kNotANumber);
  metrics
      .NewGauge("unreft_durable_copy_step",
                "Its step; NaN: there is none, or this node does not lead.")
      .Set(is_known ? static_cast<double>(newest->version.step.value) : kNotANumber);
}

}  // namespace

std::string SpareMetricsText(const NodeOptions& options) {
  Metrics metrics(LabelsOf(options));
  AddSpare(1, metrics);
  return metrics.Text();
}

std::string MetricsText(const NodeState& state, const Member* member, const ExportDesk* exports) {
  const NodeCounters& c = state.counters;
  Metrics metrics(LabelsOf(state.options));
  AddSpare(0, metrics);
  if (state.coordinator == nullptr) return metrics.Text();
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
  count("unreft_version_deadlines_total",
        "Versions that nothing but version_deadline_s has ended, while this node led its job.",
        state.coordinator->deadlines_used());
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
        state.kept->failed_writes());
  gauge("unreft_records_unwritten",
        "1: the disk of the run directory does not take what was committed.",
        state.kept->disk_problem().empty() ? 0 : 1);
  if (const TransportCounts* counts = state.seams.transport_counts) {
    count("unreft_node_read_bytes_total", "Bytes read from other nodes.", counts->reads.bulk_bytes);
    count("unreft_node_read_bytes_lost_total", "Bytes of reads that failed and were made again.",
          counts->reads.bulk_bytes_lost);
    count("unreft_node_reads_failed_total", "Reads from other nodes that failed.",
          counts->reads.failed());
    count("unreft_node_served_bytes_total", "Bytes read by other nodes.",
          counts->reads_served.bulk_bytes);
  }
  if (member != nullptr && !state.options.has_own_store) AddCluster(state, *member, metrics);
  if (exports != nullptr) AddExports(*exports, metrics);
  gauge("unreft_slot_bytes", "Shared memory held by slots, in bytes.",
        state.memory->use(SegmentKind::kSlot).bytes);
  gauge("unreft_guard_bytes", "Shared memory held by guards, in bytes.",
        state.memory->use(SegmentKind::kGuard).bytes);
  gauge("unreft_staging_bytes",
        "Shared memory held for what restores get from other nodes, in bytes.",
        state.memory->use(SegmentKind::kStaging).bytes);
  gauge("unreft_insecure", "1: talks by TCP without TLS (--insecure).",
        state.options.insecure.empty() ? 0 : 1);
  const CertificateHealth certificates =
      state.seams.certificates ? state.seams.certificates() : CertificateHealth{};
  metrics
      .NewGauge("unreft_tls_certificate_expiry_seconds",
                "Seconds until the first of the certificates in use expires; negative: it has "
                "expired; NaN: no TLS.")
      .Set(certificates.seconds_left.value_or(kNotANumber));
  gauge("unreft_tls_files_refused",
        "1: TLS files that lie there now were refused, and older ones stay in use.",
        certificates.files_are_bad ? 1 : 0);
  gauge("unreft_sessions", "Trainers known.", state.sessions.size());
  gauge("unreft_timeline", "Newest timeline.", NumberOf(state.record->chain().newest()));
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
                "Seconds since the newest commit, or the restore if that is newer; NaN: nothing is "
                "committed yet, or no job runs.")
      .Set(protection.since_commit ? std::chrono::duration<double>(*protection.since_commit).count()
                                   : kNotANumber);
  return metrics.Text();
}

}  // namespace unreft::smp
