import java.lang.reflect.Method;
import java.lang.reflect.ParameterizedType;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.stream.Stream;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.protocol.types.BoundField;
import org.apache.kafka.common.protocol.types.Field;
import org.apache.kafka.common.protocol.types.Schema;
import org.apache.kafka.common.protocol.types.TaggedFields;
import org.apache.kafka.common.protocol.types.Type;
import org.apache.kafka.common.record.internal.BaseRecords;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.SimpleRecord;

/** Gives each field that a version of a message has a value of its own, the same in every run. */
final class Filler {
    private static final long TIME_MS = 1_700_000_000_000L;
    private static final int ERRORS = 100;
    private final List<byte[]> records;
    private int count;

    /** records: where to put the records of each field that holds some. */
    Filler(List<byte[]> records) {
        this.records = records;
    }

    /**
     * Arrays get two items: one as full as can be, one with nulls.
     *
     * @param nulls whether what may be null is null, and what is tagged is left out
     */
    void fill(Object message, Schema schema, boolean nulls) throws ReflectiveOperationException {
        for (BoundField each : schema.fields()) {
            if (!(each.def.type instanceof TaggedFields tagged)) {
                set(message, each.def, nulls);
            } else if (!nulls) {
                for (Field field : tagged.fields().values()) {
                    set(message, field, false);
                }
            }
        }
    }

    private void set(Object message, Field field, boolean nulls) throws ReflectiveOperationException {
        String name = camelCase(field.name);
        String setterName = "set" + name.substring(0, 1).toUpperCase() + name.substring(1);
        Method setter = Stream.of(message.getClass().getMethods())
            .filter(each -> each.getName().equals(setterName)).findFirst().orElseThrow();
        boolean omitted = nulls && field.type.isNullable();
        Object standard = message.getClass().getMethod(name).invoke(message);
        setter.invoke(message, omitted ? null : value(field, setter.getGenericParameterTypes()[0], standard));
    }

    private Object value(Field field, java.lang.reflect.Type wanted, Object standard)
            throws ReflectiveOperationException {
        if (!field.type.isArray()) {
            return single(field.name, field.type, (Class<?>) wanted, standard, false);
        }
        boolean isList = wanted instanceof ParameterizedType;
        var items = (ParameterizedType) (isList ? wanted : ((Class<?>) wanted).getGenericSuperclass());
        Class<?> item = (Class<?>) items.getActualTypeArguments()[0];
        @SuppressWarnings("unchecked")
        Collection<Object> values = isList ? new ArrayList<>() : (Collection<Object>) make((Class<?>) wanted);
        for (boolean nulls : new boolean[] {false, true}) {
            values.add(single(field.name, field.type.arrayElementType().orElseThrow(), item, standard, nulls));
        }
        return values;
    }

    private Object single(String name, Type type, Class<?> wanted, Object standard, boolean nulls)
            throws ReflectiveOperationException {
        if (type instanceof Schema schema) {
            Object item = make(wanted);
            fill(item, schema, nulls);
            return item;
        }
        int number = ++count;
        return switch (wanted.getSimpleName()) {
            case "boolean" -> !(boolean) standard;
            case "byte", "Byte" -> (byte) number;
            case "short", "Short" -> name.equals("acks") ? (short) -1 : (short) (number % ERRORS + 1);
            case "int", "Integer" -> name.endsWith("_ms") || type == Type.UINT16 ? number : number * 1001;
            case "long", "Long" -> name.endsWith("_ms") ? TIME_MS + number : number * 10_000_000_001L;
            case "double" -> number + 0.5;
            case "String" -> name + "-" + number;
            case "Uuid" -> new Uuid(0x0123_4567_89ab_cdefL, number);
            case "byte[]" -> (name + number).getBytes();
            case "ByteBuffer" -> ByteBuffer.wrap((name + number).getBytes());
            case "BaseRecords" -> records(number);
            default -> throw new IllegalArgumentException(name + ": " + wanted);
        };
    }

    private BaseRecords records(int number) {
        SimpleRecord record = new SimpleRecord(TIME_MS + number, "key".getBytes(), ("value" + number).getBytes());
        MemoryRecords made = MemoryRecords.withRecords(Compression.NONE, record);
        byte[] bytes = new byte[made.sizeInBytes()];
        made.buffer().get(bytes);
        records.add(bytes);
        return made;
    }

    private static Object make(Class<?> wanted) throws ReflectiveOperationException {
        return wanted.getConstructor().newInstance();
    }

    private static String camelCase(String name) {
        String[] words = name.split("_");
        StringBuilder out = new StringBuilder(words[0]);
        for (String word : List.of(words).subList(1, words.length)) {
            out.append(word.substring(0, 1).toUpperCase()).append(word.substring(1));
        }
        return out.toString();
    }
}
