#include "tests/sim/cluster/read_checker.h"

#include <string>
#include <utility>

#include "base/format.h"
#include "smp/job/cluster_records.h"

namespace unreft::sim {

class ReadChecker::WatchedTransport final : public Transport {
 public:
  WatchedTransport(ReadChecker& checker, NodeSlot reader, std::unique_ptr<Transport> transport)
      : checker_(checker), reader_(reader), transport_(std::move(transport)) {}

  const std::string& address() const override { return transport_->address(); }
  void Call(const std::string& address, const std::string& method, std::string request,
            Duration timeout, CallDone done) override {
    transport_->Call(address, method, std::move(request), timeout, std::move(done));
  }
  TransferId Read(const std::string& address, std::string request, std::span<std::byte> into,
                  Duration timeout, ReadDone done) override {
    Envelope envelope;
    ReadRequest read;
    const bool is_read = envelope.ParseFromString(request) && read.ParseFromString(envelope.body());
    if (!is_read) checker_.trace_.Fail("node {} reads what nobody understands", reader_);
    return transport_->Read(address, std::move(request), into, timeout,
                            [&checker = checker_, reader = reader_, read = std::move(read),
                             done = std::move(done)](absl::StatusOr<std::string> header) mutable {
                              if (header.ok()) checker.OnRead(reader, read);
                              done(std::move(header));
                            });
  }
  void Cancel(TransferId transfer) override { transport_->Cancel(transfer); }
  void Serve(const std::string& method, CallHandler handler) override {
    transport_->Serve(method, std::move(handler));
  }
  void ServeReads(ReadHandler handler) override { transport_->ServeReads(std::move(handler)); }

 private:
  ReadChecker& checker_;
  const NodeSlot reader_;
  const std::unique_ptr<Transport> transport_;
};

std::unique_ptr<Transport> ReadChecker::Watch(NodeSlot reader,
                                              std::unique_ptr<Transport> transport) {
  return std::make_unique<WatchedTransport>(*this, reader, std::move(transport));
}

void ReadChecker::OnRead(NodeSlot reader, const ReadRequest& request) {
  if (!restored_ || smp::VersionOf(request) != *restored_) return;
  if (request.kind() == ReadRequest::DATA) return;
  trace_.Fail("node {} reads what {} is decoded from, and nothing of it is lost", reader,
              *restored_);
}

}  // namespace unreft::sim
