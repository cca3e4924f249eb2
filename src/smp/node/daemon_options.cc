#include "smp/node/daemon_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <bit>
#include <chrono>
#include <filesystem>
#include <string_view>
#include <vector>

#include "base/run_dir.h"
#include "base/text.h"
#include "base/wire_address.h"
#include "durable/cold_place.h"

namespace unreft::smp {

namespace {

constexpr Duration kLongestWait = std::chrono::hours(24 * 365);

void AddMetaOptions(CLI::App& app, meta::MetaDaemonOptions& meta) {
  meta.server.listen.clear();
  AddOption(app, meta.server.listen, "meta_listen",
            "role meta: HOST:PORT to serve at, port 0: a free one, see RUN_DIR/meta/address; or "
            "unix:/PATH; empty: 127.0.0.1:2379 with TLS, else unix://RUN_DIR/meta/meta.sock");
  AddOption(app, meta.engine.limits.history_events_max, "meta_history_max",
            "role meta: changes kept for watches that come back late",
            Range<uint64_t>{1, UINT64_MAX});
  AddOption(app, meta.engine.limits.history_bytes_max, "meta_history_bytes_max",
            "role meta: their keys and values together");
  AddOption(
      app, meta.server.tls.ca, "meta_tls_ca",
      "PEM file of who signs the other side, store or node; empty, like the next two: no TLS");
  AddOption(app, meta.server.tls.cert, "meta_tls_cert", "PEM file of the own certificate");
  AddOption(app, meta.server.tls.key, "meta_tls_key", "PEM file of its key");
}

// What is needed as soon as the job has more than one node.
void AddClusterOptions(CLI::App& app, DaemonOptions& options) {
  NodeOptions& node = options.node;
  AddOption(app, node.nodes, "nodes", "node slots of the job; more than 1 need meta_endpoints",
            Range<uint64_t>{1, 65536});
  AddOption(app, node.nodes_min, "nodes_min",
            "with so many of the nodes the job may begin; the others are let in as they come; 0: "
            "with all",
            Range<uint64_t>{0, 65536});
  AddOption(app, node.data_chunks, "data_chunks", "k of the protection groups",
            Range<uint32_t>{1, 128});
  AddOption(app, node.parity_chunks, "parity_chunks",
            "m of the protection groups: so many nodes of each may be lost; 0: no protection",
            Range<uint32_t>{0, 127});
  AddOption(app, options.spare, "spare",
            "waits to take the slot of a node that is lost; node: a number from nodes on");
  AddOption(app, node.failure_domain, "failure_domain",
            "what this node shares its fate with, a rack or a host; empty: nobody");
  AddOption(app, options.kv.endpoints, "meta_endpoints",
            "the meta store: HOST:PORT,HOST:PORT,... of its members, or unix:/PATH");
  AddOption(app, options.kv.call_timeout, "meta_call_timeout_ms",
            "of one question to the meta store; well below presence_ttl_s",
            Range<Duration>{std::chrono::milliseconds(10), std::chrono::minutes(1)});
  AddOption(app, options.kv.tls.server_name, "meta_tls_server_name",
            "the name in the certificates of all members of the meta store, if they do not have "
            "their own address or name of meta_endpoints");
  GrpcTransportOptions& transport = options.transport;
  transport.listen.clear();
  AddOption(app, transport.listen, "transport_listen",
            "HOST:PORT for the other nodes, port 0: a free one, told to them by the meta store; or "
            "unix:/PATH; empty: 127.0.0.1:0 with TLS, else unix:RUN_DIR/peers.sock");
  AddOption(app, transport.advertise, "transport_advertise",
            "the host by which others reach this node; empty: that of transport_listen");
  AddOption(app, transport.tls.ca_file, "transport_tls_ca",
            "PEM file of who signs the nodes of this job; empty, like the next two: no TLS");
  AddOption(app, transport.tls.cert_file, "transport_tls_cert", "PEM file of the certificate");
  AddOption(app, transport.tls.key_file, "transport_tls_key", "PEM file of its key");
  AddOption(app, transport.tls.reload, "transport_tls_reload_s",
            "how often the TLS files, those of meta_tls too, are looked at again",
            Range<Duration>{std::chrono::seconds(1), std::chrono::hours(24)});
  AddOption(app, node.presence_ttl, "presence_ttl_s",
            "a node that the meta store does not hear of for so long is absent",
            Range<Duration>{std::chrono::seconds(1), std::chrono::hours(1)});
  AddOption(app, node.lost_grace, "lost_grace_ms", "an absent node is lost after this time");
  AddOption(app, node.report_interval, "report_interval_ms",
            "a node tells the leader its state on every change, and at least this often",
            Range<Duration>{std::chrono::milliseconds(10), std::chrono::minutes(1)});
  AddOption(app, node.protect_window, "protect_window",
            "positions of a stripe that are encoded or rebuilt at a time",
            Range<uint32_t>{1, 1024});
  AddOption(app, node.read_timeout, "read_timeout_ms",
            "of a read between nodes, the capture of its blocks included");
  AddOption(app, node.read_retry, "read_retry_ms", "between a failed read and the next try",
            Range<Duration>{std::chrono::milliseconds(1), std::chrono::minutes(1)});
  AddOption(app, node.restore_staging_bytes, "restore_staging_bytes",
            "shared memory through which all ranks of a node get what other nodes hold; one block "
            "for each rank is taken in any case",
            Range<uint64_t>{0, uint64_t{1} << 48});
  AddOption(app, node.reads_waiting_max, "reads_waiting_max",
            "reads of other nodes that wait for a capture");
  AddOption(app, node.call_timeout, "call_timeout_ms", "of a question between nodes");
  AddOption(app, node.verify_timeout, "verify_timeout_s",
            "of reading a version again, asked for by the leader");
  AddOption(app, node.answer_page_bytes, "answer_page_bytes",
            "manifests, CRC tables and extras of slabs are asked of other nodes so many bytes at a "
            "time",
            Range<uint64_t>{4096, 32 << 20});
  AddOption(app, node.answer_bytes_max, "answer_bytes_max",
            "the most that a node may answer in all these pages together",
            Range<uint64_t>{1 << 20, (uint64_t{2} << 30) - 1});
}

absl::Status CheckTlsFiles(std::string_view prefix, const std::string& ca, const std::string& cert,
                           const std::string& key) {
  const int given = !ca.empty() + !cert.empty() + !key.empty();
  if (given == 0 || given == 3) return absl::OkStatus();
  return absl::InvalidArgumentError(fmt::format(
      "{0}_ca, {0}_cert, {0}_key: needed all 3 or none of them, found {1}", prefix, given));
}

// Where this process listens if nobody says: on this machine, as safely as it can.
void FillListening(DaemonOptions& options) {
  const std::string run_dir =
      std::filesystem::absolute(options.common.run_dir).lexically_normal().string();
  std::string& meta = options.meta.server.listen;
  if (meta.empty()) {
    meta = options.meta.server.tls.enabled()
               ? "127.0.0.1:2379"
               : fmt::format("unix://{}/meta/{}", run_dir, kMetaSocket);
  }
  std::string& transport = options.transport.listen;
  if (transport.empty()) {
    transport = options.transport.tls.enabled ? "127.0.0.1:0"
                                              : fmt::format("unix:{}/{}", run_dir, kPeersSocket);
  }
}

std::string WireOf(const std::string& address, bool has_tls) {
  if (address.empty()) return "";
  if (has_tls) return "TLS";
  return IsOpen(address, /*tls=*/false) ? "TCP without TLS" : "a socket file";
}

// Which of them others can use, and that they may.
void FillInsecure(DaemonOptions& options) {
  options.meta.server.insecure = options.insecure;
  options.kv.insecure = options.insecure;
  // Below the job's keys, which may be all that the store lets it read.
  options.kv.unwritten_key = fmt::format("unreft/{}/unwritten", options.common.job);
  if (!options.kv.endpoints.empty()) {
    options.node.peers_wire = WireOf(options.transport.listen, options.transport.tls.enabled);
    options.node.store_wire = WireOf(options.kv.endpoints, options.kv.tls.enabled());
  } else {
    options.node.has_own_store = true;
    options.node.data_chunks = 1;  // there is nobody to share anything with
  }
  std::vector<std::string> open;
  if (IsOpen(options.kv.endpoints, options.kv.tls.enabled())) {
    open.push_back("meta_endpoints " + options.kv.endpoints);
  }
  if (IsOpen(options.transport.listen, options.transport.tls.enabled)) {
    open.push_back("transport_listen " + options.transport.listen);
    // One that listens on a socket file has no peers elsewhere to connect to.
    options.transport.insecure = options.insecure;
  }
  if (!options.insecure || options.kv.endpoints.empty() || open.empty()) return;
  options.node.insecure = fmt::format(
      "{}: TCP without TLS, by which whoever reaches it can read and forge the state "
      "(--insecure)",
      fmt::join(open, ", "));
}

absl::Status CheckClusterOptions(const DaemonOptions& options) {
  const NodeOptions& node = options.node;
  const bool has_store = !options.kv.endpoints.empty();
  if (node.nodes > 1 && !has_store) {
    return absl::InvalidArgumentError(
        fmt::format("nodes: {} nodes agree through a meta store; needed meta_endpoints, found none",
                    node.nodes));
  }
  if (node.nodes_min > node.nodes) {
    return absl::InvalidArgumentError(
        fmt::format("nodes_min: needed at most nodes ({}), or 0 for all of them, found {}",
                    node.nodes, node.nodes_min));
  }
  const uint64_t chunks = uint64_t{node.data_chunks} + node.parity_chunks;
  if (chunks > node.nodes && (node.parity_chunks > 0 || has_store)) {
    return absl::InvalidArgumentError(
        fmt::format("data_chunks + parity_chunks: {} + {} need {} nodes, found {}",
                    node.data_chunks, node.parity_chunks, chunks, node.nodes));
  }
  if (options.spare && (!has_store || options.common.node < node.nodes)) {
    return absl::InvalidArgumentError(
        fmt::format("spare: needed meta_endpoints, and a node from nodes ({}) on, found {}",
                    node.nodes, options.common.node));
  }
  if (has_store && !options.spare && options.common.node >= node.nodes) {
    return absl::InvalidArgumentError(
        fmt::format("node: needed a slot of 0 to {}, for {} nodes, found {}", node.nodes - 1,
                    node.nodes, options.common.node));
  }
  if (has_store && options.kv.call_timeout >= node.presence_ttl) {
    return absl::InvalidArgumentError(fmt::format(
        "meta_call_timeout_ms: needed less than presence_ttl_s ({} ms), found {} ms",
        std::chrono::duration_cast<std::chrono::milliseconds>(node.presence_ttl).count(),
        std::chrono::duration_cast<std::chrono::milliseconds>(options.kv.call_timeout).count()));
  }
  return absl::OkStatus();
}

absl::Status CheckExports(const DaemonOptions& options) {
  const ExportPolicy& exports = options.exports;
  if (exports.directory.empty()) return absl::OkStatus();
  if (CleanText(exports.directory) != exports.directory) {
    return absl::InvalidArgumentError(
        fmt::format("export_dir: needed UTF-8 without control characters, found '{}'",
                    CleanText(exports.directory, kTextBytesMax)));
  }
  if (options.common.job == CommonOptions().job) {
    return absl::InvalidArgumentError(
        fmt::format("export_dir: copies are told apart by their job: needed a --job of its own, "
                    "found '{}'",
                    options.common.job));
  }
  if (absl::Status status = durable::CheckColdPlace(exports.directory); !status.ok()) {
    return absl::InvalidArgumentError(fmt::format("export_dir: {}", status.message()));
  }
  if (options.node.pins > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "export_dir: what is written is pinned meanwhile: needed --pins of 1 or more, found 0");
}

}  // namespace

void AddDaemonOptions(CLI::App& app, DaemonOptions& options) {
  NodeOptions& node = options.node;
  AddCommonOptions(app, options.common);
  AddOption(app, options.insecure, "insecure",
            "allows TCP without TLS, where whoever reaches a port can read and forge the state");
  AddConfigFile(app);
  AddOption(app, options.allow_inject, "allow_inject",
            "`unreft inject` may cause faults here without --force; `unreft up` gives it");
  AddOption(app, options.role, "role",
            "node: keeps this node's snapshots; meta: is the embedded meta store; forget: removes "
            "the job's records from the meta store and ends (`unreft forget`); drain: writes this "
            "node's part of a durable copy, started by the daemon",
            std::vector<std::string>{"node", "meta", "forget", "drain"});
  AddOption(app, options.drain.order, "drain_order", "role drain: what the daemon wants written");
  AddOption(app, options.forget_present, "forget_present",
            "role forget: also while daemons of the job are present");
  AddOption(app, options.exports.directory, "export_dir",
            "a directory that all nodes share, or s3://BUCKET/PREFIX, in which durable copies of "
            "what is committed are written while training goes on, each in a directory of its own; "
            "empty: none are. The same on all nodes, as the next three");
  AddOption(app, options.exports.every, "export_every_s", "from one of these copies to the next",
            Range<Duration>{std::chrono::seconds(1), Duration::max()});
  AddOption(app, options.exports.keep, "export_keep",
            "older ones are removed when so many newer are complete", Range<uint64_t>{1, 1000});
  AddOption(app, options.exports.bytes_per_s, "export_bytes_per_s",
            "the most that each node writes of them in a second; 0: as fast as it goes");
  AddOption(app, options.metrics_listen, "metrics_listen",
            "ADDRESS:PORT, or PORT of 127.0.0.1, where Prometheus gets /metrics by HTTP, without "
            "TLS and password: they name the job; port 0: a free one, see the log; empty: nowhere");
  AddOption(app, node.slots_per_rank, "slots_per_rank",
            "slots of each rank: 2, and one more to step back to an older version",
            Range<uint32_t>{2, 64});
  AddOption(app, node.pins, "pins",
            "versions that `unreft pin` may keep beside these, a slot of each rank for each; the "
            "same on all nodes",
            Range<uint32_t>{0, 16});
  AddOption(app, node.block_bytes, "block_bytes", "unit of checksum, a power of two",
            Range<uint32_t>{4096, 1u << 30});
  AddOption(app, node.populate_chunk_bytes, "populate_chunk_bytes",
            "pages of a new slot are reserved so many at a time",
            Range<uint64_t>{4096, UINT64_MAX});
  AddOption(app, node.extras_bytes_min, "extras_bytes_min",
            "the least room for a rank's extras in a slot");
  AddOption(app, node.memory_bytes_max, "memory_bytes_max",
            "limit of slots, guards and the staging of restores together; 0: what the host has");
  AddOption(app, node.memory_retry, "memory_retry_ms",
            "while memory or disk is lacking, whether there is some is looked at this often",
            Range<Duration>{std::chrono::milliseconds(10), std::chrono::minutes(1)});
  AddOption(app, node.ranks_max, "ranks_max", "most ranks of a job, those on other nodes included",
            Range<uint64_t>{1, 65536});
  AddOption(app, node.sessions_max, "sessions_max", "most connections at a time",
            Range<uint64_t>{1, 1 << 20});
  AddOption(app, node.restore_wait, "restore_wait_s",
            "how long a restore waits for all ranks of the attempt to ask",
            Range<Duration>{Duration{}, kLongestWait});
  AddOption(app, node.version_deadline, "version_deadline_s",
            "a version that some rank has not sealed by then is abandoned",
            Range<Duration>{Duration{}, kLongestWait});
  AddOption(app, node.scrub_interval, "scrub_interval_s",
            "how often the committed version is read again; 0: never");
  AddOption(app, node.replica_check_every, "replica_check_every",
            "replicas are compared every so many steps; 0: never");
  AddOption(app, node.checksum_task_blocks, "checksum_task_blocks",
            "blocks that one task of the work pool checks", Range<uint32_t>{1, 1 << 20});
  AddOption(app, options.work_threads, "work_threads",
            "threads that compute checksums; 0: half of the host's");
  AddClusterOptions(app, options);
  AddMetaOptions(app, options.meta);
}

void NoteSources(const CLI::App& app, int argc, const char* const* argv, DaemonOptions& options) {
  for (const char* name : {"nodes", "nodes_min", "data_chunks", "parity_chunks", "slots_per_rank",
                           "pins", "block_bytes"}) {
    const std::string source = SourceOfOption(app, name, argc, argv);
    if (!source.empty()) options.node.sources[name] = source;
  }
}

absl::Status FinishDaemonOptions(DaemonOptions& options) {
  if (absl::Status status = FinishCommonOptions(options.common); !status.ok()) return status;
  options.meta.directory = options.common.run_dir + "/meta";
  options.node.job = options.common.job;
  options.node.node = NodeSlot{options.common.node};
  options.node.place = options.common.node;
  // So that all daemons name the same number for it.
  if (options.node.nodes_min == options.node.nodes) options.node.nodes_min = 0;
  if (!std::has_single_bit(options.node.block_bytes)) {
    return absl::InvalidArgumentError(
        fmt::format("block_bytes: needed a power of two, found {}", options.node.block_bytes));
  }
  if (options.node.nodes > 1 && options.node.block_bytes > options.transport.message_bytes_max) {
    return absl::InvalidArgumentError(
        fmt::format("block_bytes: nodes read blocks of up to {} bytes of each other, found {}",
                    options.transport.message_bytes_max, options.node.block_bytes));
  }
  const meta::MetaTlsOptions& meta_tls = options.meta.server.tls;
  if (absl::Status status = CheckTlsFiles("meta_tls", meta_tls.ca, meta_tls.cert, meta_tls.key);
      !status.ok()) {
    return status;
  }
  // The same three files, whichever side of the store this process is, and looked at as often.
  options.meta.server.tls.reload = options.transport.tls.reload;
  options.kv.tls.reload = options.transport.tls.reload;
  options.kv.tls.ca = meta_tls.ca;
  options.kv.tls.cert = meta_tls.cert;
  options.kv.tls.key = meta_tls.key;
  GrpcTlsOptions& tls = options.transport.tls;
  if (absl::Status status =
          CheckTlsFiles("transport_tls", tls.ca_file, tls.cert_file, tls.key_file);
      !status.ok()) {
    return status;
  }
  tls.enabled = !tls.ca_file.empty();
  options.transport.job = options.common.job;
  FillListening(options);
  FillInsecure(options);
  if (options.role == "forget" && options.kv.endpoints.empty()) {
    return absl::InvalidArgumentError(
        "role forget: needed meta_endpoints, the meta store of the job; found none");
  }
  if (options.role != "node") return absl::OkStatus();
  if (absl::Status status = CheckExports(options); !status.ok()) return status;
  return CheckClusterOptions(options);
}

}  // namespace unreft::smp
