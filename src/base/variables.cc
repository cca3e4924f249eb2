#include "base/variables.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

namespace unreft {
namespace {

// Of unreftd, the command, trainers, and the scripts and tests around them: whoever starts one may
// have them all.
constexpr std::array kVariables = {"UNREFT_ALLOW_INJECT",
                                   "UNREFT_ANSWER_BYTES_MAX",
                                   "UNREFT_ANSWER_PAGE_BYTES",
                                   "UNREFT_ATTEMPT",
                                   "UNREFT_BIN_DIR",
                                   "UNREFT_BLOCK_BYTES",
                                   "UNREFT_BUNDLE_OWN_SHM",
                                   "UNREFT_CALL_TIMEOUT_MS",
                                   "UNREFT_CHECKSUM_TASK_BLOCKS",
                                   "UNREFT_CONFIG",
                                   "UNREFT_CUDA",
                                   "UNREFT_DATA_CHUNKS",
                                   "UNREFT_DEVICE_CHECKSUM",
                                   "UNREFT_DRY_RUN",
                                   "UNREFT_DRAIN_ORDER",
                                   "UNREFT_EXPORT_BYTES_PER_S",
                                   "UNREFT_EXPORT_DIR",
                                   "UNREFT_EXPORT_EVERY_S",
                                   "UNREFT_EXPORT_KEEP",
                                   "UNREFT_EXTRAS_BYTES_MIN",
                                   "UNREFT_FAILURE_DOMAIN",
                                   "UNREFT_FAULT_POINTS",
                                   "UNREFT_FORGET_PRESENT",
                                   "UNREFT_INSECURE",
                                   "UNREFT_JOB",
                                   "UNREFT_LOG_FILE",
                                   "UNREFT_LOG_FILE_BYTES_MAX",
                                   "UNREFT_LOG_LEVEL",
                                   "UNREFT_LOST_GRACE_MS",
                                   "UNREFT_MEMORY_BYTES_MAX",
                                   "UNREFT_MEMORY_RETRY_MS",
                                   "UNREFT_META_CALL_TIMEOUT_MS",
                                   "UNREFT_META_ENDPOINTS",
                                   "UNREFT_META_HISTORY_BYTES_MAX",
                                   "UNREFT_META_HISTORY_MAX",
                                   "UNREFT_META_LISTEN",
                                   "UNREFT_META_TLS_CA",
                                   "UNREFT_META_TLS_CERT",
                                   "UNREFT_META_TLS_KEY",
                                   "UNREFT_META_TLS_SERVER_NAME",
                                   "UNREFT_METRICS_LISTEN",
                                   "UNREFT_NODE",
                                   "UNREFT_NODES",
                                   "UNREFT_NODES_MIN",
                                   "UNREFT_NO_PACKAGES",
                                   "UNREFT_NVCC",
                                   "UNREFT_PARITY_CHUNKS",
                                   "UNREFT_PINS",
                                   "UNREFT_POPULATE_CHUNK_BYTES",
                                   "UNREFT_PRESENCE_TTL_S",
                                   "UNREFT_PROTECT_WINDOW",
                                   "UNREFT_PYTHON",
                                   "UNREFT_RANKS_MAX",
                                   "UNREFT_READS_WAITING_MAX",
                                   "UNREFT_READ_RETRY_MS",
                                   "UNREFT_READ_TIMEOUT_MS",
                                   "UNREFT_REPLICA_CHECK_EVERY",
                                   "UNREFT_REPORT_INTERVAL_MS",
                                   "UNREFT_RESTORE_STAGING_BYTES",
                                   "UNREFT_RESTORE_WAIT_S",
                                   "UNREFT_ROLE",
                                   "UNREFT_RUN_DIR",
                                   "UNREFT_SCRUB_INTERVAL_S",
                                   "UNREFT_SESSIONS_MAX",
                                   "UNREFT_SIM_FIRST_SEED",
                                   "UNREFT_SIM_FRESH",
                                   "UNREFT_SIM_SEEDS",
                                   "UNREFT_SLOTS_PER_RANK",
                                   "UNREFT_SOCKET",
                                   "UNREFT_SOURCE_DIR",
                                   "UNREFT_SPARE",
                                   "UNREFT_TEST_TIMEOUT_FACTOR",
                                   "UNREFT_TRANSPORT_ADVERTISE",
                                   "UNREFT_TRANSPORT_LISTEN",
                                   "UNREFT_TRANSPORT_TLS_CA",
                                   "UNREFT_TRANSPORT_TLS_CERT",
                                   "UNREFT_TRANSPORT_TLS_KEY",
                                   "UNREFT_TRANSPORT_TLS_RELOAD_S",
                                   "UNREFT_UPDATE_GOLDEN",
                                   "UNREFT_VERIFY_TIMEOUT_S",
                                   "UNREFT_VERSION_DEADLINE_S",
                                   "UNREFT_WORK_THREADS"};

constexpr size_t kMistypedMax = 2;  // letters that differ

// Letters to insert, drop or change to get from one to the other.
size_t EditDistance(std::string_view from, std::string_view to) {
  std::vector<size_t> row(to.size() + 1);
  for (size_t j = 0; j <= to.size(); ++j) row[j] = j;
  for (size_t i = 0; i < from.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < to.size(); ++j) {
      const size_t changed = diagonal + (from[i] == to[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({row[j] + 1, row[j + 1] + 1, changed});
    }
  }
  return row.back();
}

}  // namespace

bool IsVariable(std::string_view name) {
  return std::ranges::find(kVariables, name) != kVariables.end();
}

std::string UnknownVariable::Text() const {
  return fmt::format("{} is no variable of Unreft and is without effect; the nearest is {}", name,
                     nearest);
}

std::vector<UnknownVariable> FindUnknownVariables(const char* const* environment) {
  std::vector<UnknownVariable> unknown;
  for (; *environment != nullptr; ++environment) {
    const std::string_view entry = *environment;
    const std::string_view name = entry.substr(0, entry.find('='));
    if (!name.starts_with("UNREFT_") || IsVariable(name)) continue;
    const auto distance = [&](std::string_view known) { return EditDistance(name, known); };
    const std::string_view nearest = *std::ranges::min_element(kVariables, {}, distance);
    unknown.push_back({std::string(name), std::string(nearest), distance(nearest) <= kMistypedMax});
  }
  return unknown;
}

}  // namespace unreft
