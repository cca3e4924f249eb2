// unreft._core: the C ABI of libunreft in Python, one method per function. The package's client.py
// gives it its types and its documentation.
//
// The interpreter lock is never held while a lock of ours or the client is waited for, so a thread
// in a fence holds up nobody. Memory of tensors is the caller's, as in the C ABI.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <unistd.h>
#include <unreft/c.h>

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace py = pybind11;

namespace unreft::python {
namespace {

[[noreturn]] void Raise(int code, const std::string& message) {
  const py::object error = py::module_::import("unreft.errors").attr("from_code")(code, message);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  throw py::error_already_set();
}

// Owns what the pointers of `tensors` point to, but not `data`.
class TensorArray {
 public:
  explicit TensorArray(const py::sequence& list) {
    const size_t count = list.size();
    names_.reserve(count);  // pointers into these stay valid
    numbers_.reserve(3 * count);
    tensors_.reserve(count);
    for (const py::handle item : list) Add(item);
  }

  const unreft_tensor* data() const { return tensors_.data(); }
  size_t size() const { return tensors_.size(); }

 private:
  void Add(py::handle item) {
    unreft_tensor tensor;
    unreft_tensor_init(&tensor);
    names_.push_back(item.attr("name").cast<std::string>());
    tensor.name = names_.back().c_str();
    tensor.dtype = item.attr("dtype").cast<int32_t>();
    tensor.global_shape = Numbers(item, "global_shape");
    tensor.dims = static_cast<int32_t>(numbers_.back().size());
    for (const auto& [name, field] : {std::pair{"offset", &unreft_tensor::offset},
                                      std::pair{"extent", &unreft_tensor::extent}}) {
      tensor.*field = Numbers(item, name);
      if (numbers_.back().size() != static_cast<size_t>(tensor.dims)) {
        Raise(UNREFT_INVALID_ARGUMENT, "tensor '" + names_.back() + "': global_shape has " +
                                           std::to_string(tensor.dims) + " dimensions, " + name +
                                           " has " + std::to_string(numbers_.back().size()));
      }
    }
    tensor.data = reinterpret_cast<void*>(item.attr("data").cast<uintptr_t>());
    tensor.device_kind = item.attr("device").cast<int32_t>();
    tensor.device_index = item.attr("device_index").cast<int32_t>();
    tensor.replica_index = item.attr("replica_index").cast<uint32_t>();
    tensor.replica_count = item.attr("replica_count").cast<uint32_t>();
    tensor.is_volatile = item.attr("volatile").cast<bool>() ? 1 : 0;
    tensors_.push_back(tensor);
  }

  const uint64_t* Numbers(py::handle item, const char* attribute) {
    numbers_.push_back(item.attr(attribute).cast<std::vector<uint64_t>>());
    return numbers_.back().data();
  }

  std::vector<std::string> names_;
  std::vector<std::vector<uint64_t>> numbers_;
  std::vector<unreft_tensor> tensors_;
};

py::tuple NumbersTuple(const uint64_t* numbers, int32_t count) {
  py::tuple tuple(count);
  for (int32_t i = 0; i < count; ++i) tuple[i] = py::int_(numbers[i]);
  return tuple;
}

py::object StepOrNone(uint64_t step) {
  if (step == UINT64_MAX) return py::none();
  return py::int_(step);
}

// Thread-safe: `mutex_` serialises the calls of the training thread(s) and guards `client_`;
// `status_mutex_` keeps the strings of a status in place while they are copied. Close takes both.
// In a forked child, where another thread's lock would stay locked for ever, none is taken.
class Client {
 public:
  Client(const std::optional<std::string>& socket, const std::optional<std::string>& job,
         int64_t rank, int64_t world, int64_t attempt, int64_t connect_timeout_ms,
         int64_t restore_timeout_ms, int64_t fence_timeout_ms, int32_t device_checksum) {
    unreft_open_options options;
    unreft_open_options_init(&options);
    options.socket = socket ? socket->c_str() : nullptr;
    options.job = job ? job->c_str() : nullptr;
    options.rank = rank;
    options.world = world;
    options.attempt = attempt;
    options.connect_timeout_ms = connect_timeout_ms;
    options.restore_timeout_ms = restore_timeout_ms;
    options.fence_timeout_ms = fence_timeout_ms;
    options.device_checksum = device_checksum;
    Result result;
    {
      const py::gil_scoped_release no_gil;
      result = Result(unreft_open(&options, &client_));
    }
    result.RaiseIfError();
  }

  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  ~Client() { Close(); }

  py::dict RestoreBegin() {
    unreft_decision decision{};
    decision.struct_bytes = sizeof(decision);
    Call([&] { return unreft_restore_begin(client_, &decision); });
    // The next call of the kind comes from the same thread: the pointers are good until then.
    py::list tensors(decision.tensor_count);
    for (size_t i = 0; i < decision.tensor_count; ++i) {
      const unreft_tensor& tensor = decision.tensors[i];
      tensors[i] = py::make_tuple(
          tensor.name, tensor.dtype, NumbersTuple(tensor.global_shape, tensor.dims),
          NumbersTuple(tensor.offset, tensor.dims), NumbersTuple(tensor.extent, tensor.dims));
    }
    py::dict result;
    result["restored"] = decision.restored != 0;
    result["step"] = decision.step;
    result["timeline"] = decision.timeline;
    result["new_timeline"] = decision.new_timeline;
    result["tensors"] = tensors;
    result["extras"] = py::none();
    if (decision.extras != nullptr) {
      result["extras"] =
          py::bytes(static_cast<const char*>(decision.extras), decision.extras_bytes);
    }
    return result;
  }

  void RestoreRead(const py::sequence& list) {
    const TensorArray tensors(list);
    Call([&] { return unreft_restore_read(client_, tensors.data(), tensors.size()); });
  }

  void RestoreEnd() {
    Call([&] { return unreft_restore_end(client_); });
  }

  void Register(const py::sequence& list, uint64_t extras_bytes) {
    const TensorArray tensors(list);
    Call([&] { return unreft_register(client_, tensors.data(), tensors.size(), extras_bytes); });
  }

  py::tuple Snapshot(uint64_t step, const py::bytes& extras, uintptr_t stream) {
    char* bytes = nullptr;
    Py_ssize_t size = 0;
    if (PyBytes_AsStringAndSize(extras.ptr(), &bytes, &size) != 0) throw py::error_already_set();
    int32_t outcome = 0;
    std::string reason;
    Call([&] {
      const int code = unreft_snapshot(client_, step, bytes, static_cast<size_t>(size),
                                       reinterpret_cast<void*>(stream), &outcome);
      if (code == UNREFT_OK && outcome == UNREFT_SKIPPED) reason = unreft_error();
      return code;
    });
    return py::make_tuple(outcome == UNREFT_STARTED, reason);
  }

  void Fence(uintptr_t stream) {
    Call([&] { return unreft_fence(client_, reinterpret_cast<void*>(stream)); });
  }

  void WaitCommitted(uint64_t step, int64_t timeout_ms) {
    Call([&] { return unreft_wait_committed(client_, step, timeout_ms); });
  }

  py::dict Status() {
    unreft_status status{};
    status.struct_bytes = sizeof(status);
    std::string problem;
    std::string copier;
    Result result;
    {
      const py::gil_scoped_release no_gil;
      result = Guarded(status_mutex_, [&] {
        const int code = unreft_get_status(client_, &status);
        if (code == UNREFT_OK && status.last_problem != nullptr) problem = status.last_problem;
        if (code == UNREFT_OK && status.copier != nullptr) copier = status.copier;
        return code;
      });
    }
    result.RaiseIfError();
    py::dict fields;
    fields["connected"] = status.connected != 0;
    fields["ready"] = status.ready != 0;
    fields["timeline"] = status.timeline;
    fields["last_captured_step"] = StepOrNone(status.last_captured_step);
    fields["last_sealed_step"] = StepOrNone(status.last_sealed_step);
    fields["last_committed_step"] = StepOrNone(status.last_committed_step);
    fields["started"] = status.snapshots_started;
    fields["skipped"] = status.snapshots_skipped;
    fields["given_up"] = status.snapshots_given_up;
    fields["bytes_captured"] = status.bytes_captured;
    fields["last_fence_wait_s"] = status.last_fence_wait_s;
    fields["total_fence_wait_s"] = status.total_fence_wait_s;
    fields["last_problem"] = problem;
    fields["copying"] = status.copying != 0;
    fields["copier"] = copier;
    return fields;
  }

  void Close() {
    if (getpid() != pid_) return;
    const py::gil_scoped_release no_gil;
    const std::scoped_lock lock(mutex_, status_mutex_);
    unreft_close(std::exchange(client_, nullptr));
  }

 private:
  // A code and its message, taken on the thread that made the call.
  struct Result {
    Result() = default;
    Result(int error, std::string text) : code(error), message(std::move(text)) {}
    explicit Result(int result) : code(result) {
      if (code != UNREFT_OK) message = unreft_error();
    }
    void RaiseIfError() const {
      if (code != UNREFT_OK) Raise(code, message);
    }
    int code = UNREFT_OK;
    std::string message;
  };

  template <typename Function>
  Result Guarded(std::mutex& mutex, Function function) {
    if (getpid() != pid_) {
      return {UNREFT_FORKED, "a forked child of the training process called Unreft"};
    }
    const std::lock_guard lock(mutex);
    if (client_ == nullptr) return {UNREFT_FAILED_PRECONDITION, "the client is closed"};
    return Result(function());
  }

  template <typename Function>
  void Call(Function function) {
    Result result;
    {
      const py::gil_scoped_release no_gil;
      result = Guarded(mutex_, function);
    }
    result.RaiseIfError();
  }

  const pid_t pid_ = getpid();
  std::mutex mutex_;
  std::mutex status_mutex_;
  unreft_client* client_ = nullptr;
};

}  // namespace
}  // namespace unreft::python

PYBIND11_MODULE(_core, module) {
  using unreft::python::Client;
  module.doc() = "The C ABI of libunreft; see unreft.Client.";
  module.def("version", &unreft_version);
  py::class_<Client>(module, "Client")
      .def(py::init<const std::optional<std::string>&, const std::optional<std::string>&, int64_t,
                    int64_t, int64_t, int64_t, int64_t, int64_t, int32_t>(),
           py::kw_only(), py::arg("socket"), py::arg("job"), py::arg("rank"), py::arg("world"),
           py::arg("attempt"), py::arg("connect_timeout_ms"), py::arg("restore_timeout_ms"),
           py::arg("fence_timeout_ms"), py::arg("device_checksum"))
      .def("restore_begin", &Client::RestoreBegin)
      .def("restore_read", &Client::RestoreRead)
      .def("restore_end", &Client::RestoreEnd)
      .def("register", &Client::Register)
      .def("snapshot", &Client::Snapshot)
      .def("fence", &Client::Fence)
      .def("wait_committed", &Client::WaitCommitted)
      .def("status", &Client::Status)
      .def("close", &Client::Close);
}
