#include "tests/conformance/etcd_processes.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <thread>
#include <utility>

#include "base/check.h"

extern char** environ;

namespace unreft {
namespace {

constexpr char kEtcd[] = "/usr/bin/etcd";
constexpr char kEtcdCtl[] = "/usr/bin/etcdctl";
// Kills etcd when the test dies; becomes it, so that the pid is etcd's.
constexpr char kSetPriv[] = "/usr/bin/setpriv";

sockaddr_in At(const std::string& host, int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  UNREFT_CHECK(inet_pton(AF_INET, host.c_str(), &address.sin_addr) == 1);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

// Sockets that hold their ports until they are closed together, so that none is given twice.
std::vector<int> FreePorts(int count) {
  std::vector<int> sockets;
  std::vector<int> ports;
  for (int i = 0; i < count; ++i) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address = At("127.0.0.1", 0);
    socklen_t size = sizeof(address);
    UNREFT_CHECK(bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0);
    UNREFT_CHECK(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0);
    ports.push_back(ntohs(address.sin_port));
    sockets.push_back(fd);
  }
  for (const int fd : sockets) close(fd);
  return ports;
}

bool Listens(const std::string& host, int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = At(host, port);
  const bool connected = connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  close(fd);
  return connected;
}

}  // namespace

std::string EtcdProcesses::Missing() {
  for (const auto& [program, package] :
       {std::pair{kEtcd, "etcd-server"}, {kEtcdCtl, "etcd-client"}, {kSetPriv, "util-linux"}}) {
    if (access(program, X_OK) != 0) {
      return fmt::format("{} is not there (package {}); real etcd is not tested", program, package);
    }
  }
  return "";
}

EtcdProcesses::EtcdProcesses(int members, const std::vector<Tls>& tls, uint64_t quota_bytes)
    : tls_(tls), quota_bytes_(quota_bytes) {
  directory_ = testing::TempDir() + "unreft_etcd_XXXXXX";
  UNREFT_CHECK(mkdtemp(directory_.data()) != nullptr);
  const std::vector<int> ports = FreePorts(2 * members);
  for (int i = 0; i < members; ++i) {
    members_.push_back({ports[static_cast<size_t>(2 * i)], ports[static_cast<size_t>(2 * i + 1)]});
  }
  for (int i = 0; i < members; ++i) Spawn(i);
  for (int i = 0; i < members; ++i) WaitUntilItListens(i);
}

EtcdProcesses::~EtcdProcesses() {
  for (int i = 0; i < size(); ++i) Kill(i);
  std::filesystem::remove_all(directory_);
}

std::string EtcdProcesses::endpoint(int member) const {
  return fmt::format("{}:{}", host(member), members_[static_cast<size_t>(member)].client_port);
}

std::string EtcdProcesses::url(int member, int port) const {
  return fmt::format("{}://{}:{}", tls_.empty() ? "http" : "https", host(member), port);
}

int EtcdProcesses::Ctl(const Tls& client, const std::string& words) const {
  const std::string files = tls_.empty() ? ""
                                         : fmt::format("--cacert='{}' --cert='{}' --key='{}'",
                                                       client.ca, client.cert, client.key);
  const std::string command =
      fmt::format("ETCDCTL_API=3 {} --command-timeout=60s --endpoints={} {} {} >>'{}/ctl.log' 2>&1",
                  kEtcdCtl, url(0, members_.front().client_port), files, words, directory_);
  return std::system(command.c_str());
}

int EtcdProcesses::Leader() const {
  for (int i = 0; i < size(); ++i) {
    std::string command =
        fmt::format("ETCDCTL_API=3 {} --command-timeout=2s --endpoints={}", kEtcdCtl,
                    url(i, members_[static_cast<size_t>(i)].client_port));
    if (!tls_.empty()) {
      const Tls& tls = tls_[static_cast<size_t>(i)];
      command += fmt::format(" --cacert='{}' --cert='{}' --key='{}'", tls.ca, tls.cert, tls.key);
    }
    FILE* const pipe = popen((command + " endpoint status -w fields 2>/dev/null").c_str(), "re");
    UNREFT_CHECK(pipe != nullptr);
    std::string text;
    char part[4096];
    while (const size_t bytes = fread(part, 1, sizeof(part), pipe)) text.append(part, bytes);
    pclose(pipe);
    const auto number = [&](const std::string& name) -> std::string {
      const size_t at = text.find("\"" + name + "\" : ");
      return at == std::string::npos
                 ? ""
                 : text.substr(at, text.find('\n', at) - at).substr(name.size() + 5);
    };
    const std::string own = number("MemberID");
    if (!own.empty() && own == number("Leader")) return i;
  }
  return -1;
}

std::string EtcdProcesses::endpoints() const {
  std::string all;
  for (int i = 0; i < size(); ++i) all += (i == 0 ? "" : ",") + endpoint(i);
  return all;
}

void EtcdProcesses::Kill(int member) {
  pid_t& pid = members_[static_cast<size_t>(member)].pid;
  if (pid == 0) return;
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
  pid = 0;
}

void EtcdProcesses::Start(int member) {
  Spawn(member);
  WaitUntilItListens(member);
}

void EtcdProcesses::Spawn(int member) {
  std::string cluster;
  for (int i = 0; i < size(); ++i) {
    cluster += fmt::format("{}m{}={}", i == 0 ? "" : ",", i,
                           url(i, members_[static_cast<size_t>(i)].peer_port));
  }
  const std::string client = url(member, members_[static_cast<size_t>(member)].client_port);
  const std::string peer = url(member, members_[static_cast<size_t>(member)].peer_port);
  std::vector<std::string> words = {kSetPriv,
                                    "--pdeathsig",
                                    "KILL",
                                    kEtcd,
                                    "--name",
                                    fmt::format("m{}", member),
                                    "--data-dir",
                                    fmt::format("{}/m{}", directory_, member),
                                    "--listen-client-urls",
                                    client,
                                    "--advertise-client-urls",
                                    client,
                                    "--listen-peer-urls",
                                    peer,
                                    "--initial-advertise-peer-urls",
                                    peer,
                                    "--initial-cluster",
                                    cluster,
                                    "--heartbeat-interval",
                                    "100",
                                    "--election-timeout",
                                    "500",
                                    "--logger",
                                    "zap",
                                    "--log-level",
                                    "error"};
  if (quota_bytes_ != 0) {
    words.insert(words.end(), {"--quota-backend-bytes", fmt::format("{}", quota_bytes_)});
  }
  if (!tls_.empty()) {
    const Tls& tls = tls_[static_cast<size_t>(member)];
    for (const std::string of : {"", "peer-"}) {
      const std::string option = "--" + of;
      words.insert(words.end(), {option + "client-cert-auth", option + "trusted-ca-file", tls.ca,
                                 option + "cert-file", tls.cert, option + "key-file", tls.key});
    }
    // Whichever address a member listens at, it calls from the first of the loopback.
    words.emplace_back("--experimental-peer-skip-client-san-verification");
  }
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  const std::string log = fmt::format("{}/m{}.log", directory_, member);
  posix_spawn_file_actions_addopen(&actions, 1, log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  posix_spawn_file_actions_adddup2(&actions, 1, 2);
  // Not fork: gRPC has threads in this process.
  const int error = posix_spawn(&members_[static_cast<size_t>(member)].pid, kSetPriv, &actions,
                                nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  UNREFT_CHECK(error == 0, "posix_spawn: {}", error);
}

void EtcdProcesses::WaitUntilItListens(int member) {
  const int port = members_[static_cast<size_t>(member)].client_port;
  for (int tries = 0; tries < 3000 && !Listens(host(member), port); ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  UNREFT_CHECK(Listens(host(member), port), "etcd does not listen on port {}", port);
}

}  // namespace unreft
