// EtcdProcesses: a real etcd cluster on 127.0.0.1 for a test, in a directory of its own. With TLS
// each member is at an address of its own, 127.0.0.1, .2, .3, that its certificate may name alone.
#pragma once

#include <absl/status/statusor.h>
#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

namespace unreft {

class EtcdProcesses {
 public:
  // Why there can be none: the package is not installed. Empty: there can.
  static std::string Missing();

  // PEM files of a member, for its clients and for the others.
  struct Tls {
    std::string ca;
    std::string cert;
    std::string key;
  };

  // Starts `members` of them, or one for each of `tls`, and returns when all of them listen.
  // `quota_bytes`: of each one's database; 0: etcd's own.
  explicit EtcdProcesses(int members, uint64_t quota_bytes = 0)
      : EtcdProcesses(members, {}, quota_bytes) {}
  explicit EtcdProcesses(const std::vector<Tls>& tls)
      : EtcdProcesses(static_cast<int>(tls.size()), tls, 0) {}
  // Kills them and removes their directory.
  ~EtcdProcesses();
  EtcdProcesses(const EtcdProcesses&) = delete;
  EtcdProcesses& operator=(const EtcdProcesses&) = delete;

  int size() const { return static_cast<int>(members_.size()); }
  static std::string Address(int member) { return "127.0.0." + std::to_string(member + 1); }

  // "127.0.0.1:P,127.0.0.1:P"
  std::string endpoints() const;
  std::string endpoint(int member) const;

  // Of the member that leads, as etcdctl says; -1: none does now.
  int Leader() const;
  // Runs etcdctl on the first member, with that client's files; its exit status.
  int Ctl(const Tls& client, const std::string& words) const;
  int Ctl(const std::string& words) const { return Ctl({}, words); }
  void Kill(int member);
  // Returns when it listens.
  void Start(int member);

 private:
  struct Member {
    int client_port;
    int peer_port;
    pid_t pid = 0;
  };

  EtcdProcesses(int members, const std::vector<Tls>& tls, uint64_t quota_bytes);
  std::string host(int member) const { return tls_.empty() ? "127.0.0.1" : Address(member); }
  std::string url(int member, int port) const;
  void Spawn(int member);
  void WaitUntilItListens(int member);

  std::string directory_;
  const std::vector<Tls> tls_;  // by member; none: plaintext
  const uint64_t quota_bytes_;
  std::vector<Member> members_;
};

}  // namespace unreft
