#include "tools/cli/meta_control.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <fstream>
#include <random>

#include "base/lock_file.h"
#include "base/rocks_record_store.h"
#include "base/run_dir.h"
#include "tools/cli/owned_fd.h"
#include "tools/cli/spawn.h"
#include "tools/cli/supervisor.h"

namespace unreft::cli {
namespace {

constexpr Milliseconds kPollInterval(20);
// Below the ports that the kernel gives to connections (net.ipv4.ip_local_port_range).
constexpr uint16_t kPortMin = 20000;
constexpr uint16_t kPortMax = 32000;
constexpr int kPortsTried = 100;

bool IsFree(uint16_t port) {
  OwnedFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return fd.valid() && bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
}

std::vector<std::string> SupervisorArgv(const Place& place, const std::string& address,
                                        const StartRequest& request) {
  std::vector<std::string> argv = {SelfPath(),  "supervise",   "--job",  place.job,
                                   "--run-dir", place.run_dir, "--meta", address};
  if (!request.daemon_path.empty()) argv.insert(argv.end(), {"--daemon", request.daemon_path});
  argv.push_back("--");
  argv.insert(argv.end(), request.daemon_words.begin(), request.daemon_words.end());
  return argv;
}

std::string ServedAddress(const Place& place) {
  std::ifstream file(MetaDirectory(place) + "/address");
  std::string address;
  file >> address;
  return address;
}

bool IsUp(const Place& place) {
  FoundProcess meta = FindMeta(place);
  return meta.ok() && meta->has_value() && !ServedAddress(place).empty();
}

absl::Status WaitServing(const Place& place, const ProcessHandle& started, Milliseconds timeout) {
  const Deadline deadline(timeout);
  while (!IsUp(place)) {
    if (started.WaitEnd(Milliseconds(0))) {
      return absl::FailedPreconditionError(fmt::format(
          "job {}: the meta store (pid {}) ended before it served; its log {} ends with:{}",
          place.job, started.pid(), MetaLog(place), LastLines(MetaLog(place))));
    }
    if (deadline.passed()) {
      return absl::DeadlineExceededError(
          fmt::format("job {}: waited {} ms for the meta store to serve (its log: {})", place.job,
                      timeout.count(), MetaLog(place)));
    }
    poll(nullptr, 0, static_cast<int>(kPollInterval.count()));
  }
  return absl::OkStatus();
}

}  // namespace

std::string MetaDirectory(const Place& place) { return place.run_dir + "/meta"; }
absl::Status RemoveMetaFiles(const Place& place) {
  const std::string directory = MetaDirectory(place);
  if (absl::Status status = RocksRecordStore::Destroy(directory + "/records"); !status.ok()) {
    return status;
  }
  return RemoveFiles(directory,
                     {"address", "address.new", kMetaSocket, kSupervisorLock, "meta.lock"});
}

std::string MetaLog(const Place& place) { return place.run_dir + "/meta.log"; }

std::string MetaSocketAddress(const Place& place) {
  return fmt::format("unix://{}/{}", MetaDirectory(place), kMetaSocket);
}

absl::StatusOr<std::string> ChooseMetaAddress() {
  std::random_device random;
  std::uniform_int_distribution<int> draw(kPortMin, kPortMax);
  for (int tried = 0; tried < kPortsTried; ++tried) {
    const auto port = static_cast<uint16_t>(draw(random));
    if (IsFree(port)) return fmt::format("127.0.0.1:{}", port);
  }
  return absl::UnavailableError(
      fmt::format("no free port for the meta store: {} of {} to {} on 127.0.0.1 were tried",
                  kPortsTried, kPortMin, kPortMax));
}

std::vector<std::string> MetaArgv(const Place& place, const std::string& address,
                                  const StartRequest& request) {
  std::vector<std::string> argv = {
      request.daemon_path.empty() ? SiblingPath(kDaemonName) : request.daemon_path,
      "--role=meta",
      "--job",
      place.job,
      "--run-dir",
      place.run_dir,
      "--meta-listen",
      address};
  argv.insert(argv.end(), request.daemon_words.begin(), request.daemon_words.end());
  return argv;
}

absl::StatusOr<bool> StartMeta(const Place& place, const std::string& address,
                               const StartRequest& request) {
  if (IsUp(place)) return true;
  FoundProcess supervisor = FindMetaSupervisor(place);
  if (!supervisor.ok()) return supervisor.status();
  if (supervisor->has_value()) {  // it is starting it again
    const absl::Status status = WaitServing(place, **supervisor, request.timeout);
    if (!status.ok()) return status;
    return true;
  }
  SpawnRequest spawn;
  spawn.argv = request.supervise ? SupervisorArgv(place, address, request)
                                 : MetaArgv(place, address, request);
  absl::StatusOr<pid_t> pid = SpawnDetached(std::move(spawn), MetaLog(place));
  if (!pid.ok()) return pid.status();
  absl::StatusOr<ProcessHandle> started = ProcessHandle::Open(*pid);
  if (!started.ok()) {
    return absl::FailedPreconditionError(
        fmt::format("job {}: the meta store (pid {}) ended at once; its log {} ends with:{}",
                    place.job, *pid, MetaLog(place), LastLines(MetaLog(place))));
  }
  const absl::Status status = WaitServing(place, *started, request.timeout);
  if (!status.ok()) return status;
  return false;
}

FoundProcess FindMeta(const Place& place) {
  return FindServer(MetaDirectory(place) + "/meta.lock", kDaemonName,
                    {"--role=meta", place.job, place.run_dir});
}

FoundProcess FindMetaSupervisor(const Place& place) {
  return FindServer(MetaDirectory(place) + "/" + kSupervisorLock, kSupervisorName,
                    {"supervise", "--meta", place.job, place.run_dir});
}

absl::Status SuperviseMeta(const Place& place, const std::string& address,
                           const StartRequest& request) {
  absl::StatusOr<LockFile> lock = LockFile::Acquire(MetaDirectory(place), kSupervisorLock);
  if (!lock.ok()) return lock.status();
  return Supervise({.argv = MetaArgv(place, address, request)});
}

}  // namespace unreft::cli
